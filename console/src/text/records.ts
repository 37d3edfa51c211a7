// Records as text: previews of keys and values, and the parts of JSON values that columns show. Must
// not: make any markup.

import type { Bytes, MessageRecord } from "../api/types";
import { bytesOf, visible } from "./visible";

const PREVIEW = 400;

/** What kind of bytes a value is, in a word. */
export function kindOf(value: Bytes | null): string {
  if (value === null) return "null";
  if (value.encoding === "base64") return "binary";
  if (value.encoding === "utf-8") return "text";
  return value.encoding;
}

/** The beginning of a key or a value in one line. */
export function preview(value: Bytes): string {
  if (value.encoding === "base64") {
    const found = bytesOf(value.text.slice(0, 64));
    if (!found) return value.text.slice(0, 64);
    const pairs = Array.from(found.subarray(0, 32), (byte) => byte.toString(16).padStart(2, "0"));
    return pairs.join(" ") + (value.size_bytes > 32 ? " …" : "");
  }
  const text = value.text.slice(0, PREVIEW);
  const isJson = value.encoding !== "utf-8";
  return visible(isJson ? text.replaceAll(/\n\s*/g, " ") : text);
}

const parsed = new WeakMap<Bytes, unknown>();

/** A value as JSON; undefined where it is none. */
export function jsonOf(value: Bytes | null): unknown {
  if (value === null || value.encoding === "base64" || value.is_truncated) return undefined;
  if (parsed.has(value)) return parsed.get(value);
  let found: unknown;
  try {
    found = JSON.parse(value.text);
  } catch {
    found = undefined;
  }
  parsed.set(value, found);
  return found;
}

const STEP = /\[(?:"((?:[^"\\]|\\.)*)"|(-?\d+))\]|([^.[\]]+)/g;

/** The steps of a path as filters write it: user.id, items[0], ["a.b"]. */
export function stepsOf(path: string): readonly (string | number)[] {
  const steps: (string | number)[] = [];
  for (const [, quoted, index, name] of path.matchAll(STEP)) {
    if (quoted !== undefined) steps.push(quoted.replaceAll(/\\(.)/g, "$1"));
    else if (index !== undefined) steps.push(Number(index));
    else if (name !== undefined) steps.push(name);
  }
  return steps;
}

/** A part of a JSON value. */
export function partOf(value: unknown, path: string): unknown {
  let part = value;
  for (const step of stepsOf(path)) {
    if (Array.isArray(part)) part = part.at(Number(step));
    else if (typeof part === "object" && part !== null && Object.hasOwn(part, step)) {
      part = (part as Readonly<Record<string, unknown>>)[step];
    } else return undefined;
  }
  return part;
}

/** A part of a value in a cell; empty where it does not exist. */
export function cellOf(record: MessageRecord, path: string): string {
  const part = partOf(jsonOf(record.value), path);
  if (part === undefined) return "";
  const text = typeof part === "string" ? part : (JSON.stringify(part) ?? "");
  return visible(text.slice(0, PREVIEW));
}

/** What names a record among those of its topic. */
export function idOf(record: MessageRecord): string {
  return `${record.partition}:${record.offset}`;
}
