// JSON and other text of records, coloured by kind. The text is always text: tokens become elements,
// never markup. Texts above MOST_COLOURED characters are shown without colours.

import type { JSX } from "preact";
import { visible, visibleLines } from "../text/visible";

const MOST_COLOURED = 200_000;
const TOKEN = /("(?:[^"\\]|\\.)*")(\s*:)?|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|\b(true|false|null)\b/g;

/** A JSON text in colours. */
export function JsonText({ text }: { readonly text: string }): JSX.Element {
  if (text.length > MOST_COLOURED) return <pre class="text-view" tabIndex={0}>{visibleLines(text)}</pre>;
  const parts: (JSX.Element | string)[] = [];
  let last = 0;
  for (const found of text.matchAll(TOKEN)) {
    const at = found.index;
    if (at > last) parts.push(visibleLines(text.slice(last, at)));
    const [whole, quoted, colon, number] = found;
    const kind = quoted !== undefined ? (colon !== undefined ? "j-name" : "j-text") : number !== undefined ? "j-number" : "j-word";
    parts.push(
      <span key={at} class={kind}>
        {visible(quoted ?? whole)}
      </span>,
    );
    if (quoted !== undefined && colon !== undefined) parts.push(colon);
    last = at + whole.length;
  }
  parts.push(visibleLines(text.slice(last)));
  return <pre class="text-view" tabIndex={0}>{parts}</pre>;
}

/** Any text, line by line. */
export function PlainText({ text }: { readonly text: string }): JSX.Element {
  return <pre class="text-view" tabIndex={0}>{visibleLines(text)}</pre>;
}

/** JSON with line ends, where it is JSON. */
export function pretty(text: string): string | null {
  const first = text.trimStart()[0];
  if (first !== "{" && first !== "[") return null;
  try {
    JSON.parse(text);
  } catch {
    return null;
  }
  return indented(text);
}

/** Line ends and indents put into valid JSON; numbers keep their digits, names their order. */
function indented(text: string): string {
  let out = "";
  let depth = 0;
  let isQuoted = false;
  const line = (): string => `\n${"  ".repeat(depth)}`;
  for (let at = 0; at < text.length; at += 1) {
    const character = text[at] ?? "";
    if (isQuoted) {
      out += character;
      if (character === "\\") {
        at += 1;
        out += text[at] ?? "";
      } else if (character === '"') isQuoted = false;
      continue;
    }
    if (character === '"') {
      isQuoted = true;
      out += character;
    } else if (character === "{" || character === "[") {
      const close = character === "{" ? "}" : "]";
      const rest = text.slice(at + 1, at + 1 + 64).trimStart();
      if (rest.startsWith(close)) {
        out += character + close;
        at = text.indexOf(close, at + 1);
      } else {
        depth += 1;
        out += character + line();
      }
    } else if (character === "}" || character === "]") {
      depth -= 1;
      out += line() + character;
    } else if (character === ",") out += character + line();
    else if (character === ":") out += ": ";
    else if (!/\s/.test(character)) out += character;
  }
  return out;
}

/** A value that is JSON already, as the API has it. */
export function valueText(value: unknown): string {
  return typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "");
}
