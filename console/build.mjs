// Builds the page's assets: `node build.mjs [DIRECTORY]`, by default into moldau/console/page.
//
// The same sources give the same bytes on every machine, so that a test can compare them with what
// is committed. Each asset has the hash of its content in its name and may be cached for ever.

import { build } from "esbuild";
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join, relative, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { brotliCompressSync, gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const out = resolve(process.argv[2] ?? join(here, "..", "moldau", "console", "page"));
const assets = join(out, "assets");

rmSync(out, { recursive: true, force: true });
mkdirSync(assets, { recursive: true });

const built = await build({
  absWorkingDir: here,
  entryPoints: {
    console: "src/main.tsx",
    theme: "src/theme.ts",
    style: "src/style/index.css",
  },
  outdir: assets,
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  bundle: true,
  splitting: true,
  format: "esm",
  target: ["es2022"],
  jsx: "automatic",
  jsxImportSource: "preact",
  minify: true,
  legalComments: "none",
  charset: "utf8",
  metafile: true,
  logLevel: "warning",
});

/** The name that an entry has after the build. */
function assetOf(source) {
  for (const [path, output] of Object.entries(built.metafile.outputs)) {
    if (output.entryPoint === source) return relative(assets, resolve(here, path));
  }
  throw new Error(`${source} has no output`);
}

let page = readFileSync(join(here, "src", "index.html"), "utf8");
for (const [mark, source] of [
  ["@style", "src/style/index.css"],
  ["@theme", "src/theme.ts"],
  ["@console", "src/main.tsx"],
]) {
  page = page.replaceAll(mark, `/console/assets/${assetOf(source)}`);
}
writeFileSync(join(out, "index.html"), page);
writeFileSync(join(out, "licenses.txt"), licenses());

// Beside each asset stand its compressed forms, for servers that send them as they are: browsers take
// Brotli's over TLS alone.
let total = 0;
let brotliTotal = 0;
for (const name of readdirSync(assets).sort()) {
  const bytes = readFileSync(join(assets, name));
  const compressed = gzipSync(bytes, { level: 9 });
  const brotli = brotliCompressSync(bytes);
  writeFileSync(join(assets, `${name}.gz`), compressed);
  writeFileSync(join(assets, `${name}.br`), brotli);
  total += compressed.length;
  brotliTotal += brotli.length;
  row(name, bytes.length, compressed.length, brotli.length);
}
row("together", "", total, brotliTotal);

/** A name, and bytes: plain, gzip, Brotli. */
function row(name, ...sizes) {
  console.log(name.padEnd(32), ...sizes.map((size) => String(size).padStart(8)));
}

/** The licences of the packages whose code is in the assets. */
function licenses() {
  const packages = new Set();
  for (const input of Object.keys(built.metafile.inputs)) {
    const found = /node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
    if (found) packages.add(found[1]);
  }
  const texts = [...packages].sort().map((name) => {
    const folder = join(here, "node_modules", name);
    const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
    const text = file ? readFileSync(join(folder, file), "utf8").trim() : `${about.license}`;
    return `${name} ${about.version} (${about.license})\n\n${text}\n`;
  });
  return `The assets of the console contain code of these packages.\n\n${texts.join(`\n${"-".repeat(72)}\n\n`)}`;
}
