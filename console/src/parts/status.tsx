// States and small marks: each by a shape and a word, and only then by a colour.

import type { ComponentChildren, JSX } from "preact";

export type Tone = "ok" | "warn" | "bad" | "info" | "quiet";

const SHAPES: Readonly<Record<Tone, JSX.Element>> = {
  ok: <circle cx="5" cy="5" r="4" />,
  warn: <path d="M5 .8 9.5 9H.5Z" />,
  bad: <path d="M1 1h8v8H1Z" />,
  info: <path d="M5 .5 9.5 5 5 9.5 .5 5Z" />,
  quiet: <circle class="hollow" cx="5" cy="5" r="3.3" />,
};

export function Shape({ tone }: { readonly tone: Tone }): JSX.Element {
  return (
    <svg class={`shape ${tone}`} width="10" height="10" viewBox="0 0 10 10" aria-hidden="true">
      {SHAPES[tone]}
    </svg>
  );
}

/** A state: its shape and its word. */
export function State({ tone, children }: { readonly tone: Tone; readonly children: ComponentChildren }): JSX.Element {
  return (
    <span class={`state ${tone}`}>
      <Shape tone={tone} />
      <span>{children}</span>
    </span>
  );
}

/** A short fact beside a name. */
export function Tag({
  tone = "quiet",
  title,
  children,
}: {
  readonly tone?: Tone | "accent";
  readonly title?: string;
  readonly children: ComponentChildren;
}): JSX.Element {
  return (
    <span class={`tag ${tone}`} title={title}>
      {children}
    </span>
  );
}

const GROUP_TONES: Readonly<Record<string, Tone>> = {
  stable: "ok",
  empty: "quiet",
  dead: "quiet",
  "not ready": "warn",
};

/** The tone of a group's state by Kafka's name for it. */
export function groupTone(state: string): Tone {
  const name = state.replaceAll(/([a-z])([A-Z])/g, "$1 $2").replaceAll("_", " ").toLowerCase();
  return GROUP_TONES[name] ?? (/rebalanc|assign|reconcil/.test(name) ? "info" : "quiet");
}

/** A name of Kafka's as a word of a sentence: PREPARING_REBALANCE as "Preparing rebalance". */
export function words(name: string): string {
  const text = name.replaceAll(/([a-z])([A-Z])/g, "$1 $2").replaceAll("_", " ").toLowerCase();
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** How much of something is used. */
export function Meter({
  used,
  total,
  label,
}: {
  readonly used: number;
  readonly total: number;
  readonly label: string;
}): JSX.Element {
  const share = total > 0 ? Math.min(1, Math.max(0, used / total)) : 0;
  const tone: Tone = share > 0.95 ? "bad" : share > 0.85 ? "warn" : "info";
  return (
    <span class={`meter ${tone}`} role="meter" aria-label={label} aria-valuemin={0} aria-valuemax={100} aria-valuenow={Math.round(share * 100)}>
      <span class="meter-bar" style={{ width: `${share * 100}%` }} />
    </span>
  );
}
