// Text of the cluster so that every character is seen: control characters, invisible ones and those
// that turn the direction of writing get a symbol or their code. Must not: make any markup.

// eslint-disable-next-line no-control-regex
const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]/g;

function symbolOf(character: string): string {
  const code = character.charCodeAt(0);
  if (code < 0x20) return String.fromCharCode(0x2400 + code);
  if (code === 0x7f) return "\u2421";
  return `\u27e8U+${code.toString(16).toUpperCase().padStart(4, "0")}\u27e9`;
}

/** One line: line ends and tabs are symbols, too. */
export function visible(text: string): string {
  return text.replace(HIDDEN, symbolOf);
}

/** Several lines: line ends and tabs stay. */
export function visibleLines(text: string): string {
  return text.replace(HIDDEN, (character) =>
    character === "\n" || character === "\t" ? character : symbolOf(character),
  );
}

/** Base64 text as bytes; null where it is none. */
export function bytesOf(base64: string): Uint8Array | null {
  try {
    const binary = atob(base64);
    return Uint8Array.from(binary, (character) => character.charCodeAt(0));
  } catch {
    return null;
  }
}

/** Bytes as rows of offset, sixteen hexadecimal pairs, and the ASCII characters among them. */
export function hexRows(data: Uint8Array, most = 4096): string {
  const rows: string[] = [];
  const end = Math.min(data.length, most);
  for (let start = 0; start < end; start += 16) {
    const row = data.subarray(start, Math.min(start + 16, end));
    const pairs = Array.from(row, (byte) => byte.toString(16).padStart(2, "0"));
    const text = Array.from(row, (byte) => (byte >= 0x20 && byte < 0x7f ? String.fromCharCode(byte) : "·"));
    rows.push(`${start.toString(16).padStart(6, "0")}  ${pairs.join(" ").padEnd(47)}  ${text.join("")}`);
  }
  if (data.length > end) rows.push(`… ${data.length - end} more bytes`);
  return rows.join("\n");
}
