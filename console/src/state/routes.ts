// Where the page is: the path below /console/ and its query. Owns: the browser's history, and what a
// click on a link within the page does. Invariant: each view can be opened by its address alone.

import { computed, signal } from "@preact/signals";

export const BASE = "/console/";

interface Place {
  readonly path: string;
  readonly query: URLSearchParams;
}

function here(): Place {
  const { pathname, search } = window.location;
  const path = pathname.startsWith(BASE) ? pathname.slice(BASE.length) : "";
  return { path: path.replace(/\/+$/, ""), query: new URLSearchParams(search) };
}

export const place = signal<Place>(here());

/** The path's parts, decoded. */
export const parts = computed<readonly string[]>(() =>
  place.value.path.split("/").filter(Boolean).map(decoded),
);

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** Goes to an address of the page. */
export function navigate(href: string, how: "push" | "replace" = "push"): void {
  const url = new URL(href, window.location.href);
  if (how === "push") window.history.pushState(null, "", url);
  else window.history.replaceState(null, "", url);
  const before = place.value.path;
  place.value = here();
  if (place.value.path !== before) {
    window.scrollTo(0, 0);
    document.getElementById("main")?.focus({ preventScroll: true });
  }
}

/** Sets parameters of the query; null removes one. The entry of the history stays the same. */
export function setQuery(changes: Readonly<Record<string, string | number | null>>): void {
  const query = new URLSearchParams(place.value.query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") query.delete(name);
    else query.set(name, String(value));
  }
  const text = query.toString();
  navigate(window.location.pathname + (text ? `?${text}` : ""), "replace");
}

/** A parameter of the query; empty where it is missing. */
export function queryOf(name: string): string {
  return place.value.query.get(name) ?? "";
}

/** Follows links within the page without loading it again. */
export function startRouting(): void {
  window.addEventListener("popstate", () => {
    place.value = here();
  });
  document.addEventListener("click", (event) => {
    if (event.defaultPrevented || event.button !== 0) return;
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    const link = event.composedPath().find((node) => node instanceof HTMLAnchorElement);
    if (!link || link.target || link.hasAttribute("download")) return;
    const url = new URL(link.href, window.location.href);
    if (url.origin !== window.location.origin || !url.pathname.startsWith(BASE)) return;
    if (url.hash && url.pathname === window.location.pathname) return;
    event.preventDefault();
    navigate(url.href);
  });
}

const PLAIN = /^[A-Za-z0-9_-][A-Za-z0-9._-]*$/;

/** The address of something with a name, which may have any characters. */
export function to(room: string, name?: string, ...rest: string[]): string {
  if (name === undefined) return BASE + room;
  const tail = rest.map((part) => `/${encodeURIComponent(part)}`).join("");
  if (PLAIN.test(name)) return `${BASE}${room}/${name}${tail}`;
  return `${BASE}${room}/~${tail}?name=${encodeURIComponent(name)}`;
}

/** The name in an address that `to` has made. */
export function nameIn(part: string | undefined): string {
  return part === "~" ? queryOf("name") : (part ?? "");
}
