// Small parts that every view is made of: buttons to copy, empty states, problems, skeletons, facts.

import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import type { Problem } from "../api/problem";
import { retry, state } from "../state/session";
import { Icon, type IconName } from "./icons";

/** Copies a text; says so for two seconds. */
export function Copy({ text, label = "Copy" }: { readonly text: string; readonly label?: string }): JSX.Element {
  const [isDone, setDone] = useState(false);
  const copy = async (): Promise<void> => {
    await copyText(text);
    setDone(true);
    setTimeout(() => setDone(false), 2000);
  };
  return (
    <button type="button" class="icon-button" onClick={() => void copy()} aria-label={isDone ? "Copied" : label} title={isDone ? "Copied" : label}>
      <Icon name={isDone ? "check" : "copy"} />
      <span class="visually-hidden" aria-live="polite">{isDone ? "Copied" : ""}</span>
    </button>
  );
}

async function copyText(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without TLS only the old way is open.
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "visually-hidden";
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** A command to copy. */
export function Command({ text, label = "As a command" }: { readonly text: string; readonly label?: string }): JSX.Element {
  return (
    <div class="command" role="group" aria-label={label}>
      <code tabIndex={0}>{text}</code>
      <Copy text={text} label="Copy the command" />
    </div>
  );
}

/** What a view says when it has nothing to show, and what to do. */
export function Empty({
  title,
  children,
  command,
  action,
  icon = "info",
}: {
  readonly title: string;
  readonly children?: ComponentChildren;
  readonly command?: string;
  readonly action?: ComponentChildren;
  readonly icon?: IconName;
}): JSX.Element {
  return (
    <div class="empty">
      <span class="empty-icon">
        <Icon name={icon} size={22} />
      </span>
      <h2>{title}</h2>
      {children && <p>{children}</p>}
      {command && <Command text={command} />}
      {action}
    </div>
  );
}

/** A problem in its place: what failed, by Kafka's name, and what is allowed. */
export function ProblemBox({
  problem,
  onRetry,
}: {
  readonly problem: Problem;
  readonly onRetry?: () => void;
}): JSX.Element {
  return (
    <div class="problem" role="alert">
      <Icon name="warning" />
      <div>
        <p class="problem-title">
          {titleOf(problem)}
          {problem.kafkaError && <code>{problem.kafkaError}</code>}
        </p>
        {problem.detail && <p class={problem.detail.includes("\n") ? "problem-detail mono" : "problem-detail"}>{problem.detail}</p>}
        {problem.retryAfterS !== null && <p class="problem-detail">Try again in {problem.retryAfterS} s.</p>}
      </div>
      {onRetry && (
        <button type="button" class="button small" onClick={onRetry}>
          Try again
        </button>
      )}
    </div>
  );
}

function titleOf(problem: Problem): string {
  if (problem.isForbidden) return "You may not do this";
  if (problem.isMissing) return "This does not exist";
  if (problem.status === 429) return "Too many requests";
  if (problem.isLoginNeeded) return "Log-in needed";
  return problem.title;
}

/** Bars in the place of text that is on its way. */
export function Skeleton({ lines = 3 }: { readonly lines?: number }): JSX.Element {
  return (
    <div class="skeleton" aria-hidden="true">
      {Array.from({ length: lines }, (_, line) => (
        <span key={line} class={`bone w${(line * 2) % 5}`} />
      ))}
    </div>
  );
}

/** A name and a value; several make a list of facts. */
export function Fact({
  name,
  children,
  hint,
}: {
  readonly name: string;
  readonly children: ComponentChildren;
  readonly hint?: string;
}): JSX.Element {
  return (
    <div class="fact" title={hint}>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

export function Facts({ children }: { readonly children: ComponentChildren }): JSX.Element {
  return <dl class="facts">{children}</dl>;
}

/** A view's heading, with what can be done at its right. */
export function Heading({
  title,
  above,
  beside,
  actions,
  children,
}: {
  readonly title: string;
  readonly above?: ComponentChildren;
  readonly beside?: ComponentChildren;
  readonly actions?: ComponentChildren;
  readonly children?: ComponentChildren;
}): JSX.Element {
  return (
    <header class="heading">
      <div class="heading-text">
        {above && <p class="above">{above}</p>}
        <div class="heading-line">
          <h1>{title}</h1>
          {beside}
        </div>
        {children && <p class="lead">{children}</p>}
      </div>
      {actions && <div class="heading-actions">{actions}</div>}
    </header>
  );
}

/** A part of a view with a title. */
export function Card({
  title,
  actions,
  children,
  isFlush = false,
}: {
  readonly title?: string;
  readonly actions?: ComponentChildren;
  readonly children: ComponentChildren;
  readonly isFlush?: boolean;
}): JSX.Element {
  return (
    <section class={`card${isFlush ? " flush" : ""}`} aria-label={isFlush ? undefined : title}>
      {title && (
        <div class="card-head">
          <h2>{title}</h2>
          {actions}
        </div>
      )}
      <div class="card-body">{children}</div>
    </section>
  );
}

/** A remark beside what it is about. */
export function Note({ tone = "info", children }: { readonly tone?: "info" | "warn"; readonly children: ComponentChildren }): JSX.Element {
  return (
    <div class={`note ${tone}`}>
      <Icon name={tone === "warn" ? "warning" : "info"} />
      <div>{children}</div>
    </div>
  );
}

/** The whole page when the session could not be read. */
export function StartFailed({ problem }: { readonly problem: Problem }): JSX.Element {
  return (
    <main class="centre" id="main" tabIndex={-1}>
      <Empty title="The cluster cannot be reached" icon="warning" action={
        <button type="button" class="button primary" disabled={state.value === "loading"} onClick={() => void retry()}>
          Try again
        </button>
      }>
        {problem.detail || problem.title}
      </Empty>
    </main>
  );
}
