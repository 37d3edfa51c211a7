// The one way to the API: JSON in, JSON out, problems as typed errors. Owns: the token against
// cross-site requests, and what is done when a log-in is needed. Must not: know any path.

import { Problem, problemOf, isAborted } from "./problem";

export type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
export type QueryValue = string | number | boolean | null | undefined | readonly (string | number)[];
export type Query = Readonly<Record<string, QueryValue>>;

export interface RequestOptions {
  readonly query?: Query | undefined;
  readonly body?: unknown;
  readonly signal?: AbortSignal | undefined;
  readonly timeoutMs?: number;
}

const TIMEOUT_MS = 40_000;

let requestToken: string | null = null;
let whenLoginNeeded: () => void = () => undefined;

/** Takes the session's token, which every change carries. */
export function setRequestToken(token: string | null): void {
  requestToken = token;
}

/** Says what happens when an answer is 401. */
export function onLoginNeeded(action: () => void): void {
  whenLoginNeeded = action;
}

/** A path with its query; parameters without a value are left out. */
export function withQuery(path: string, query?: Query): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value === null || value === undefined || value === "") continue;
    parameters.set(name, Array.isArray(value) ? value.join(",") : String(value));
  }
  const text = parameters.toString();
  return text ? `${path}?${text}` : path;
}

function headersOf(method: Method, hasBody: boolean): Headers {
  const headers = new Headers({ Accept: "application/json" });
  if (hasBody) headers.set("Content-Type", "application/json");
  if (method !== "GET" && requestToken !== null) {
    headers.set("X-Moldau-Request-Token", requestToken);
  }
  return headers;
}

/** Asks and returns the answer itself, good ones only. */
export async function fetchRaw(
  method: Method,
  path: string,
  options: RequestOptions & { readonly headers?: Record<string, string> } = {},
): Promise<Response> {
  const hasBody = options.body !== undefined;
  const headers = headersOf(method, hasBody);
  for (const [name, value] of Object.entries(options.headers ?? {})) headers.set(name, value);
  let response: Response;
  try {
    response = await fetch(withQuery(path, options.query), {
      method,
      headers,
      credentials: "same-origin",
      cache: "no-store",
      body: hasBody ? JSON.stringify(options.body) : null,
      signal: options.signal ?? null,
    });
  } catch (error) {
    if (isAborted(error)) throw error;
    if (error instanceof DOMException && error.name === "TimeoutError") {
      throw new Problem(0, "No answer in time", "The console's server has taken too long.");
    }
    throw new Problem(0, "The console's server does not answer", "The connection was refused or broke off.");
  }
  if (!response.ok) {
    const problem = await problemOf(response);
    if (problem.isLoginNeeded) whenLoginNeeded();
    throw problem;
  }
  return response;
}

/** Asks and returns the JSON of the answer; undefined where it has no body. */
export async function request<T>(method: Method, path: string, options: RequestOptions = {}): Promise<T> {
  const limit = AbortSignal.timeout(options.timeoutMs ?? TIMEOUT_MS);
  const signal = options.signal ? AbortSignal.any([options.signal, limit]) : limit;
  const response = await fetchRaw(method, path, { ...options, signal });
  if (response.status === 204) return undefined as T;
  const text = await response.text();
  return (text ? JSON.parse(text) : undefined) as T;
}
