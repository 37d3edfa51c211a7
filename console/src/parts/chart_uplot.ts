// uPlot with the page's colours. A chunk that only `chart.tsx` loads.

import uPlot from "uplot";
import { clock } from "../text/numbers";
import type { ChartProps } from "./chart";

export interface ChartHandle {
  readonly update: (props: ChartProps) => void;
  readonly destroy: () => void;
}

function dataOf(props: ChartProps): uPlot.AlignedData {
  return [props.times.map((ms) => ms / 1000), ...props.lines.map((line) => [...line.values])];
}

/** Draws a chart into an element, as wide as that is. */
export function draw(host: HTMLElement, props: ChartProps): ChartHandle {
  const style = getComputedStyle(document.documentElement);
  const colour = (name: string): string => style.getPropertyValue(name).trim();
  const font = `11px ${colour("--sans") || "sans-serif"}`;
  const axis = { stroke: colour("--text-3"), font, ticks: { show: false } };
  const height = props.height ?? 160;
  const plot = new uPlot(
    {
      width: Math.max(host.clientWidth, 120),
      height,
      padding: [8, 4, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { size: 6 } },
      scales: { y: { range: (_plot, _low, high) => [0, high > 0 ? high * 1.15 : 1] } },
      axes: [
        {
          ...axis,
          size: 24,
          space: 80,
          grid: { show: false },
          values: (_plot, splits) => splits.map((seconds) => clock(seconds * 1000)),
        },
        {
          ...axis,
          size: 64,
          space: 36,
          grid: { stroke: colour("--line"), width: 1 },
          values: (_plot, splits) => splits.map((value) => props.format(value)),
        },
      ],
      series: [
        {},
        ...props.lines.map((line, index) => ({
          label: line.label,
          stroke: colour(line.colour),
          width: 1.75,
          points: { show: false },
          ...(index === 0 ? { fill: `${colour(line.colour)}1f` } : {}),
        })),
      ],
    },
    dataOf(props),
    host,
  );
  const observer = new ResizeObserver(() => {
    plot.setSize({ width: Math.max(host.clientWidth, 120), height });
  });
  observer.observe(host);
  return {
    update: (next) => plot.setData(dataOf(next)),
    destroy: () => {
      observer.disconnect();
      plot.destroy();
    },
  };
}
