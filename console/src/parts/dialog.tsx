// What asks before something changes: it says what will happen in Kafka's terms and as a command, shows
// the problem in place where it fails, and announces what is done. Owns: the open dialog's state.

import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { asProblem, type Problem } from "../api/problem";
import { Command, ProblemBox } from "./basics";
import { Icon } from "./icons";

interface Said {
  readonly id: number;
  readonly text: string;
}

const said = signal<readonly Said[]>([]);
let nextId = 1;

/** Announces what has been done, for six seconds. */
export function say(text: string): void {
  const id = nextId;
  nextId += 1;
  said.value = [...said.value, { id, text }].slice(-3);
  setTimeout(() => {
    said.value = said.value.filter((entry) => entry.id !== id);
  }, 6000);
}

export function Announcements(): JSX.Element {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {said.value.map((entry) => (
        <div key={entry.id} class="toast">
          <Icon name="check" />
          {entry.text}
        </div>
      ))}
    </div>
  );
}

/** A window above the page; Escape closes it. */
export function Dialog({
  title,
  children,
  onClose,
  isWide = false,
  isSide = false,
}: {
  readonly title: string;
  readonly children: ComponentChildren;
  readonly onClose: () => void;
  readonly isWide?: boolean;
  readonly isSide?: boolean;
}): JSX.Element {
  const box = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    const element = box.current;
    const before = document.activeElement;
    element?.showModal();
    const places = [".dialog-body input:not(.visually-hidden)", ".dialog-body select", ".dialog-foot button", ".dialog-head button"];
    const first = places.map((place) => element?.querySelector<HTMLElement>(place)).find(Boolean);
    first?.focus();
    return () => {
      element?.close();
      if (before instanceof HTMLElement) before.focus();
    };
  }, []);
  const names = ["dialog", isWide ? "wide" : "", isSide ? "side" : ""].filter(Boolean).join(" ");
  return (
    <dialog
      ref={box}
      class={names}
      aria-label={title}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onMouseDown={(event) => {
        if (event.target === box.current) onClose();
      }}
    >
      <div class="dialog-inner">
        <header class="dialog-head">
          <h2>{title}</h2>
          <button type="button" class="icon-button" aria-label="Close" onClick={onClose}>
            <Icon name="close" />
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}

interface ConfirmProps {
  readonly title: string;
  /** Fields, or what is worth knowing. */
  readonly children?: ComponentChildren;
  /** What will happen, in Kafka's terms. */
  readonly says: ComponentChildren;
  readonly command: string | null;
  readonly action: string;
  readonly isDangerous?: boolean;
  readonly isReady?: boolean;
  /** A name that must be typed, for what cannot be undone. */
  readonly typed?: string;
  /** Does it; what it returns is announced. */
  readonly onDo: () => Promise<string>;
  readonly onClose: () => void;
  readonly isWide?: boolean;
}

export function Confirm(props: ConfirmProps): JSX.Element {
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  const [typed, setTyped] = useState("");
  const isTyped = props.typed === undefined || typed === props.typed;
  const isReady = (props.isReady ?? true) && isTyped && !isBusy;
  const act = async (): Promise<void> => {
    if (!isReady) return;
    setBusy(true);
    setProblem(null);
    try {
      const text = await props.onDo();
      say(text);
      props.onClose();
    } catch (error) {
      setProblem(asProblem(error));
    } finally {
      setBusy(false);
    }
  };
  return (
    <Dialog title={props.title} onClose={props.onClose} isWide={props.isWide ?? false}>
      <form
        class="confirm"
        onSubmit={(event) => {
          event.preventDefault();
          void act();
        }}
      >
        <div class="dialog-body">
          {props.children}
          <div class="says">{props.says}</div>
          {props.command && (
            <div class="as-command">
              <span class="label">The same as a command</span>
              <Command text={props.command} />
            </div>
          )}
          {props.typed !== undefined && (
            <label class="field">
              <span class="label">
                Type <code>{props.typed}</code> to go on
              </span>
              <input class="input" value={typed} autoComplete="off" spellcheck={false} onInput={(event) => setTyped(event.currentTarget.value)} />
            </label>
          )}
          {problem && <ProblemBox problem={problem} />}
        </div>
        <footer class="dialog-foot">
          <button type="button" class="button" onClick={props.onClose}>
            Cancel
          </button>
          <button type="submit" class={`button ${props.isDangerous ? "danger" : "primary"}`} disabled={!isReady}>
            {isBusy ? "Working…" : props.action}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
