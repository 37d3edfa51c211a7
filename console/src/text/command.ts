// The `moldau` commands that do what the page does, quoted for a shell. Must not: run anything.

const PLAIN = /^[A-Za-z0-9_@%+=:,./-]+$/;

/** A word as a POSIX shell reads it. */
export function quote(word: string): string {
  if (word !== "" && PLAIN.test(word)) return word;
  return `'${word.replaceAll("'", "'\\''")}'`;
}

type Part = string | number | null | undefined | false | readonly (string | number)[];

/** A command line of its words; words without a value are left out. */
export function command(...parts: readonly Part[]): string {
  const words: string[] = ["moldau"];
  for (const part of parts) {
    if (part === null || part === undefined || part === false) continue;
    for (const word of Array.isArray(part) ? part : [part]) words.push(quote(String(word)));
  }
  return words.join(" ");
}

/** An option that is repeated for each value. */
export function each(option: string, values: readonly (string | number)[]): string[] {
  return values.flatMap((value) => [option, String(value)]);
}

/** An option with a value, or nothing where the value is empty. */
export function option(name: string, value: string | number | null | undefined): string[] {
  return value === null || value === undefined || value === "" ? [] : [name, String(value)];
}
