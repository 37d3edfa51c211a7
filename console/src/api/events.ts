// Server-sent events over fetch, so that errors have bodies, the id is sent again after a break, and
// a page that reads slowly slows the server down. Owns: one connection and its attempts. Invariant:
// what waits to be parsed never exceeds MOST_BUFFERED characters.

import { fetchRaw } from "./http";
import { asProblem, isAborted, Problem } from "./problem";

const MOST_BUFFERED = 8 * 1024 * 1024;
const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 10_000;

export interface EventHandlers {
  readonly event: (name: string, data: string) => void;
  readonly open: () => void;
  /** The connection broke; it is tried again after this many milliseconds. */
  readonly broken: (problem: Problem, retryMs: number) => void;
  /** The server refuses, or has ended the stream: it is not tried again. */
  readonly ended: (problem: Problem | null) => void;
}

/** Listens until the signal is aborted, connecting again where a connection breaks. */
export async function listen(path: string, handlers: EventHandlers, signal: AbortSignal): Promise<void> {
  let lastId: string | null = null;
  let delay = FIRST_DELAY_MS;
  while (!signal.aborted) {
    try {
      const headers: Record<string, string> = { Accept: "text/event-stream" };
      if (lastId !== null) headers["Last-Event-ID"] = lastId;
      const response = await fetchRaw("GET", path, { signal, headers });
      handlers.open();
      for await (const [name, data, id] of eventsOf(response, signal)) {
        delay = FIRST_DELAY_MS;
        if (id !== null) lastId = id;
        if (name === "problem" || name === "error") {
          handlers.ended(problemIn(data));
          return;
        }
        handlers.event(name, data);
      }
      throw new Problem(0, "The stream has ended", "The console's server closed the connection.");
    } catch (error) {
      if (signal.aborted || isAborted(error)) return;
      const problem = asProblem(error);
      if (problem.status >= 400 && problem.status !== 503 && problem.status !== 429 && !problem.isUnreachable) {
        handlers.ended(problem);
        return;
      }
      handlers.broken(problem, delay);
      await pause(delay, signal);
      delay = Math.min(delay * 2, LONGEST_DELAY_MS);
    }
  }
}

function problemIn(data: string): Problem {
  try {
    const body = JSON.parse(data) as { status?: number; title?: string; detail?: string; kafka_error?: string | null };
    return new Problem(body.status ?? 500, body.title ?? "The stream has ended", body.detail ?? "", body.kafka_error ?? null);
  } catch {
    return new Problem(500, "The stream has ended", data.slice(0, 500));
  }
}

async function* eventsOf(
  response: Response,
  signal: AbortSignal,
): AsyncGenerator<readonly [string, string, string | null]> {
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  let name = "message";
  let data: string[] = [];
  let id: string | null = null;
  try {
    while (!signal.aborted) {
      const { value, done } = await reader.read();
      if (done) return;
      buffer += value;
      if (buffer.length > MOST_BUFFERED) throw new Problem(500, "An event is too large", "More than 8 MiB without an end.");
      let start = 0;
      for (let end = buffer.indexOf("\n", start); end >= 0; end = buffer.indexOf("\n", start)) {
        const line = buffer.slice(start, buffer[end - 1] === "\r" && end > start ? end - 1 : end);
        start = end + 1;
        if (line === "") {
          if (data.length > 0) yield [name, data.join("\n"), id];
          name = "message";
          data = [];
          continue;
        }
        if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
        else if (line.startsWith("event:")) name = line.slice(6).trim();
        else if (line.startsWith("id:")) id = line.slice(3).trim();
      }
      buffer = buffer.slice(start);
    }
  } finally {
    await reader.cancel().catch(() => undefined);
  }
}

function pause(ms: number, signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    }, { once: true });
  });
}
