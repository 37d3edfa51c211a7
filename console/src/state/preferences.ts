// What the person has chosen, kept in the browser: theme, favourites, filters, columns. Owns: the keys
// that begin with "moldau." in localStorage. Works without storage, for as long as the page is open.

import { effect, signal, type Signal } from "@preact/signals";

function read<Value>(key: string, initial: Value, isValid: (value: unknown) => value is Value): Value {
  try {
    const text = localStorage.getItem(`moldau.${key}`);
    if (text === null) return initial;
    const value: unknown = JSON.parse(text);
    return isValid(value) ? value : initial;
  } catch {
    return initial;
  }
}

function kept<Value>(key: string, initial: Value, isValid: (value: unknown) => value is Value): Signal<Value> {
  const value = signal(read(key, initial, isValid));
  effect(() => {
    try {
      localStorage.setItem(`moldau.${key}`, JSON.stringify(value.value));
    } catch {
      // Storage is full or switched off.
    }
  });
  return value;
}

const isStrings = (value: unknown): value is readonly string[] =>
  Array.isArray(value) && value.every((entry) => typeof entry === "string");

export type Theme = "system" | "light" | "dark";

function storedTheme(): Theme {
  try {
    const theme = localStorage.getItem("moldau.theme");
    return theme === "light" || theme === "dark" ? theme : "system";
  } catch {
    return "system";
  }
}

export const theme = signal<Theme>(storedTheme());

effect(() => {
  const root = document.documentElement;
  if (theme.value === "system") delete root.dataset["theme"];
  else root.dataset["theme"] = theme.value;
  try {
    if (theme.value === "system") localStorage.removeItem("moldau.theme");
    else localStorage.setItem("moldau.theme", theme.value);
  } catch {
    // The choice then holds for this page alone.
  }
});

const dark = window.matchMedia("(prefers-color-scheme: dark)");
const systemIsDark = signal(dark.matches);
dark.addEventListener("change", () => {
  systemIsDark.value = dark.matches;
});

/** Whether what is shown now is dark. */
export function isDark(): boolean {
  return theme.value === "dark" || (theme.value === "system" && systemIsDark.value);
}

/** Names of the topics that the person has marked. */
export const favourites = kept<readonly string[]>("favourites", [], isStrings);

/** Marks a topic, or takes the mark away. */
export function toggleFavourite(topic: string): void {
  const old = favourites.value;
  favourites.value = old.includes(topic) ? old.filter((name) => name !== topic) : [...old, topic].sort();
}

/** A filter of messages that has a name. */
export interface OwnFilter {
  readonly name: string;
  readonly topic: string;
  readonly where: string;
  readonly grep: string;
  readonly key: string;
}

const isFilters = (value: unknown): value is readonly OwnFilter[] =>
  Array.isArray(value) &&
  value.every((entry) => typeof entry === "object" && entry !== null && "name" in entry && "where" in entry);

export const ownFilters = kept<readonly OwnFilter[]>("filters", [], isFilters);

const isColumns = (value: unknown): value is Readonly<Record<string, readonly string[]>> =>
  typeof value === "object" && value !== null && Object.values(value).every(isStrings);

/** The columns of JSON values that are shown, by topic. */
export const columnsOf = kept<Readonly<Record<string, readonly string[]>>>("columns", {}, isColumns);

const isFlag = (value: unknown): value is boolean => typeof value === "boolean";

export const showInternal = kept<boolean>("internal", false, isFlag);
