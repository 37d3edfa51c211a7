// A chart over time. The charting code is loaded when the first chart is shown. Beside the picture
// stands the newest value of each line as text, so that nothing is said by the picture alone.

import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { isDark } from "../state/preferences";
import type { ChartHandle } from "./chart_uplot";

export interface Line {
  readonly label: string;
  /** The name of a custom property with the line's colour. */
  readonly colour: string;
  readonly values: readonly (number | null)[];
}

export interface ChartProps {
  readonly label: string;
  /** Milliseconds since 1970, ascending. */
  readonly times: readonly number[];
  readonly lines: readonly Line[];
  readonly format: (value: number) => string;
  readonly height?: number;
}

export function Chart(props: ChartProps): JSX.Element {
  const host = useRef<HTMLDivElement>(null);
  const handle = useRef<ChartHandle | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const dark = isDark();
  const isDrawn = props.times.length > 1;
  useEffect(() => {
    let isGone = false;
    void import("./chart_uplot").then(
      ({ draw }) => {
        if (isGone || !host.current) return;
        handle.current = draw(host.current, latest.current);
      },
      () => undefined,
    );
    return () => {
      isGone = true;
      handle.current?.destroy();
      handle.current = null;
    };
  }, [dark, props.lines.length, isDrawn]);
  useEffect(() => handle.current?.update(props), [props.times, props.lines]);
  const height = props.height ?? 160;
  return (
    <figure class="chart">
      <figcaption class="legend">
        {props.lines.map((line) => (
          <span key={line.label} class="legend-entry">
            <span class="legend-mark" style={{ background: `var(${line.colour})` }} />
            {line.label}
            <b>{newest(line.values, props.format)}</b>
          </span>
        ))}
      </figcaption>
      {isDrawn ? (
        <div ref={host} class="chart-host" role="img" aria-label={props.label} style={{ height: `${height}px` }} />
      ) : (
        <p class="chart-wait" style={{ height: `${height}px` }}>
          The line begins with the second measurement.
        </p>
      )}
    </figure>
  );
}

function newest(values: readonly (number | null)[], format: (value: number) => string): string {
  const last = values.findLast((value) => value !== null);
  return last === undefined || last === null ? "–" : format(last);
}
