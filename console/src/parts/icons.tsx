// The page's icons: strokes on a grid of 16. Each stands beside a word, or its button has a label.

import type { JSX } from "preact";

const PATHS = {
  overview: "M2.5 8.5h2.2l1.8-5 3 9 1.8-4h2.2",
  topics: "M2.5 4h11M2.5 8h11M2.5 12h7",
  groups: "M5.5 7.5a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM2 12.5c.3-2 1.7-3 3.5-3s3.2 1 3.5 3M10.5 7.5a1.7 1.7 0 1 0 0-3.4M11 9.6c1.6.1 2.7 1.1 3 2.9",
  transactions: "M3 5.5h9.5M10 3l2.5 2.5L10 8M13 10.5H3.5M6 8l-2.5 2.5L6 13",
  quorum: "M8 2.5v4M8 9.5 4 12.5M8 9.5l4 3M8 6.5a1.5 1.5 0 1 0 0 3 1.5 1.5 0 0 0 0-3ZM8 2.5h.01M4 12.5h.01M12 12.5h.01",
  brokers: "M3 3h10v4H3zM3 9h10v4H3zM5 5h.01M5 11h.01",
  security: "M8 2.2 3 4v4c0 3 2 5 5 6 3-1 5-3 5-6V4L8 2.2ZM6 8l1.5 1.5L10.2 6.5",
  schemas: "M6 2.5C4.5 2.5 5 5 5 6s-.5 2-2 2c1.5 0 2 1 2 2s-.5 3.5 1 3.5M10 2.5c1.5 0 1 2.5 1 3.5s.5 2 2 2c-1.5 0-2 1-2 2s.5 3.5-1 3.5",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10ZM10.6 10.6 14 14",
  sun: "M8 10.8a2.8 2.8 0 1 0 0-5.6 2.8 2.8 0 0 0 0 5.6ZM8 1.5v1.3M8 13.2v1.3M1.5 8h1.3M13.2 8h1.3M3.4 3.4l.9.9M11.7 11.7l.9.9M3.4 12.6l.9-.9M11.7 4.3l.9-.9",
  moon: "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5Z",
  auto: "M8 2.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11ZM8 2.5v11M8 5.5h4.8M8 8h5.5M8 10.5h4.8",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  close: "M4 4l8 8M12 4l-8 8",
  copy: "M5.5 5.5h7v7h-7zM3.5 10.5v-7h7",
  check: "M3 8.5 6.5 12 13 4.5",
  star: "M8 2.3l1.7 3.6 3.9.5-2.9 2.7.8 3.9L8 11l-3.5 2 .8-3.9L2.4 6.4l3.9-.5L8 2.3Z",
  plus: "M8 3v10M3 8h10",
  play: "M5 3.5v9l7-4.5-7-4.5Z",
  pause: "M5.5 3.5v9M10.5 3.5v9",
  download: "M8 2.5v7M5 7l3 3 3-3M3 13h10",
  more: "M3.5 8h.01M8 8h.01M12.5 8h.01",
  up: "M4 10l4-4 4 4",
  down: "M4 6l4 4 4-4",
  right: "M6 4l4 4-4 4",
  left: "M10 4 6 8l4 4",
  warning: "M8 2.5 14 13H2L8 2.5ZM8 6.5v3M8 11.3h.01",
  info: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM8 7.3V11M8 5h.01",
  user: "M8 8a2.7 2.7 0 1 0 0-5.4A2.7 2.7 0 0 0 8 8ZM3 13.5c.5-2.5 2.3-3.7 5-3.7s4.5 1.2 5 3.7",
  out: "M9.5 3H3.5v10h6M7 8h7M11.5 5.5 14 8l-2.5 2.5",
  trash: "M3 4.5h10M6 4.5V3h4v1.5M4.5 4.5l.5 8.5h6l.5-8.5M7 7v3.5M9 7v3.5",
  edit: "M3 13l.7-3L10.5 3.2l2.3 2.3L6 12.3 3 13Z",
  refresh: "M13 8a5 5 0 1 1-1.5-3.6M13 2.5v2.8h-2.8",
  send: "M2.5 8 13.5 3l-3 10-3-4-5-1Z",
  clock: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM8 4.8V8l2.2 1.5",
  columns: "M2.5 3h11v10h-11zM6.2 3v10M9.8 3v10",
  lock: "M4 7.5h8v6H4zM5.5 7.5V5.3a2.5 2.5 0 0 1 5 0v2.2",
  external: "M6 3.5H3v9.5h9.5v-3M9 3h4v4M13 3 7.5 8.5",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 16 }: { readonly name: IconName; readonly size?: number }): JSX.Element {
  return (
    <svg class="icon" width={size} height={size} viewBox="0 0 16 16" aria-hidden="true" focusable="false">
      <path d={PATHS[name]} />
    </svg>
  );
}

/** The sign of the house: two waves. */
export function Mark({ size = 26 }: { readonly size?: number }): JSX.Element {
  return (
    <svg class="mark" width={size} height={size} viewBox="0 0 32 32" aria-hidden="true" focusable="false">
      <rect width="32" height="32" rx="8" />
      <path d="M6 12c4-4 8 4 12 0 3-3 6-1 8 0M6 19.5c4-4 8 4 12 0 3-3 6-1 8 0" />
    </svg>
  );
}
