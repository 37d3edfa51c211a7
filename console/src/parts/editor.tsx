// A field for expressions and JSON. The editor's code is loaded when the field is first used; until
// then, and where loading fails, it is a plain field with the same text. Owns: the text being edited.

import type { JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import type { EditorHandle } from "./editor_codemirror";

export interface EditorProps {
  readonly label: string;
  readonly value: string;
  readonly language: "filter" | "json";
  readonly onChange: (value: string) => void;
  readonly onEnter?: () => void;
  readonly placeholder?: string;
  /** Names that are offered while typing. */
  readonly names?: readonly string[];
  readonly isInvalid?: boolean;
}

const MOST_TYPED = 100;

export function Editor(props: EditorProps): JSX.Element {
  const id = useId();
  const host = useRef<HTMLDivElement>(null);
  const handle = useRef<EditorHandle | null>(null);
  const latest = useRef(props);
  // What was typed and has not come back as the value yet: it is no change from outside.
  const typed = useRef<string[]>([]);
  latest.current = {
    ...props,
    onChange: (text) => {
      typed.current = [...typed.current, text].slice(-MOST_TYPED);
      props.onChange(text);
    },
  };
  const [isLoaded, setLoaded] = useState(false);
  useEffect(() => {
    let isGone = false;
    void import("./editor_codemirror").then(
      ({ edit }) => {
        if (isGone || !host.current) return;
        handle.current = edit(host.current, () => latest.current);
        setLoaded(true);
      },
      () => undefined,
    );
    return () => {
      isGone = true;
      handle.current?.destroy();
      handle.current = null;
    };
  }, []);
  useEffect(() => {
    const at = typed.current.indexOf(props.value);
    typed.current = at < 0 ? [] : typed.current.slice(at + 1);
    if (at < 0) handle.current?.setText(props.value);
  }, [props.value]);
  const isLine = props.language === "filter";
  return (
    <div class={`editor${isLine ? " line" : ""}${props.isInvalid ? " invalid" : ""}`}>
      <div ref={host} class="editor-host" data-editor={props.language} hidden={!isLoaded} />
      {!isLoaded && (
        <>
          <label class="visually-hidden" for={id}>
            {props.label}
          </label>
          {isLine ? (
            <input
              id={id}
              class="editor-plain"
              value={props.value}
              placeholder={props.placeholder}
              spellcheck={false}
              autoComplete="off"
              onInput={(event) => props.onChange(event.currentTarget.value)}
              onKeyDown={(event) => {
                if (event.key === "Enter") props.onEnter?.();
              }}
            />
          ) : (
            <textarea id={id} class="editor-plain" rows={8} value={props.value} spellcheck={false} onInput={(event) => props.onChange(event.currentTarget.value)} />
          )}
        </>
      )}
    </div>
  );
}
