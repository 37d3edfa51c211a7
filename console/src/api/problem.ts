// Errors of the API (RFC 9457) as one class. Must not: decide how they are shown.

/** What an error's body may hold; everything may be absent. */
export interface ProblemBody {
  readonly title?: string;
  readonly status?: number;
  readonly detail?: string;
  readonly message?: string;
  readonly error_code?: number;
  readonly kafka_error?: string | null;
}

/** A request that failed: by the API's answer, or because no answer came (status 0). */
export class Problem extends Error {
  constructor(
    readonly status: number,
    readonly title: string,
    readonly detail: string,
    readonly kafkaError: string | null = null,
    readonly retryAfterS: number | null = null,
  ) {
    super(detail || title);
    this.name = "Problem";
  }

  /** No node answered. */
  get isUnreachable(): boolean {
    return this.status === 0 || this.status === 502 || this.status === 504;
  }

  get isLoginNeeded(): boolean {
    return this.status === 401;
  }

  get isForbidden(): boolean {
    return this.status === 403;
  }

  get isMissing(): boolean {
    return this.status === 404;
  }
}

/** The problem of an answer that is not good. */
export async function problemOf(response: Response): Promise<Problem> {
  let body: ProblemBody = {};
  const text = await response.text().catch(() => "");
  try {
    const parsed: unknown = JSON.parse(text);
    if (typeof parsed === "object" && parsed !== null) body = parsed as ProblemBody;
  } catch {
    body = { detail: text.slice(0, 500) };
  }
  const retry = Number(response.headers.get("retry-after"));
  return new Problem(
    response.status,
    body.title ?? (response.statusText || `HTTP ${response.status}`),
    body.detail ?? body.message ?? "",
    body.kafka_error ?? null,
    Number.isFinite(retry) && retry > 0 ? retry : null,
  );
}

/** Any thrown value as a problem. */
export function asProblem(error: unknown): Problem {
  if (error instanceof Problem) return error;
  if (error instanceof Error) return new Problem(0, "The console's server does not answer", error.message);
  return new Problem(0, "Unknown error", String(error));
}

/** Whether a request ended because the page asked for its end. */
export function isAborted(error: unknown): boolean {
  return error instanceof DOMException && error.name === "AbortError";
}
