// A list that the server has more of: its first page, asked again now and then, and further pages when
// they are wanted. Invariant: a new question forgets the pages of the old one.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { asProblem, isAborted, type Problem } from "../api/problem";
import type { Page } from "../api/types";
import { useResource } from "./resource";

export interface Pages<Row> {
  readonly rows: readonly Row[] | null;
  readonly total: number;
  readonly problem: Problem | null;
  readonly isLoading: boolean;
  readonly more: (() => void) | null;
  readonly reload: () => void;
}

interface Further<Row> {
  readonly key: string | null;
  readonly rows: readonly Row[];
  readonly next: string | null;
}

export function usePages<Row>(
  key: string | null,
  ask: (after: string | null, signal: AbortSignal) => Promise<Page<Row>>,
  everyMs: number | null = null,
): Pages<Row> {
  const first = useResource(key, (signal) => ask(null, signal), everyMs);
  const [further, setFurther] = useState<Further<Row>>({ key, rows: [], next: null });
  const [isLoading, setLoading] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  const controller = useRef<AbortController | null>(null);
  useEffect(() => {
    setFurther({ key, rows: [], next: null });
    setProblem(null);
    return () => controller.current?.abort();
  }, [key]);
  const mine = further.key === key && further.rows.length > 0 ? further : null;
  const next = mine ? mine.next : (first.data?.next ?? null);
  const more = useCallback(() => {
    if (next === null) return;
    const asked = new AbortController();
    controller.current = asked;
    setLoading(true);
    ask(next, asked.signal).then(
      (page) => {
        setFurther((old) => ({
          key,
          rows: [...(old.key === key ? old.rows : []), ...page.data],
          next: page.next,
        }));
        setLoading(false);
      },
      (error: unknown) => {
        if (!isAborted(error)) setProblem(asProblem(error));
        setLoading(false);
      },
    );
  }, [key, next]);
  return {
    rows: first.data ? [...first.data.data, ...(mine?.rows ?? [])] : null,
    total: first.data?.total ?? 0,
    problem: first.problem ?? problem,
    isLoading: first.isLoading || isLoading,
    more: next === null ? null : more,
    reload: first.reload,
  };
}
