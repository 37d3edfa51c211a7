// Fields of forms: a label, a hint or what is wrong, and the value as text. Must not: decide what is
// allowed.

import type { ComponentChildren, JSX } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { Icon } from "./icons";

interface FieldProps {
  readonly label: string;
  readonly hint?: ComponentChildren;
  readonly wrong?: string | null;
  readonly isHiddenLabel?: boolean;
  readonly className?: string;
}

function Frame({
  id,
  label,
  hint,
  wrong,
  isHiddenLabel,
  className,
  children,
}: FieldProps & { readonly id: string; readonly children: ComponentChildren }): JSX.Element {
  return (
    <div class={`field${className ? ` ${className}` : ""}`}>
      <label class={isHiddenLabel ? "visually-hidden" : "label"} for={id}>
        {label}
      </label>
      {children}
      {wrong ? (
        <span class="wrong" id={`${id}-hint`}>
          {wrong}
        </span>
      ) : (
        hint && (
          <span class="hint" id={`${id}-hint`}>
            {hint}
          </span>
        )
      )}
    </div>
  );
}

export function TextField({
  value,
  onChange,
  type = "text",
  placeholder,
  isMono = false,
  autoComplete = "off",
  inputMode,
  list,
  autoFocus,
  ...frame
}: FieldProps & {
  readonly value: string;
  readonly onChange: (value: string) => void;
  readonly type?: "text" | "password" | "datetime-local";
  readonly placeholder?: string;
  readonly isMono?: boolean;
  readonly autoComplete?: string;
  readonly inputMode?: "numeric" | "text";
  readonly list?: readonly string[];
  readonly autoFocus?: boolean;
}): JSX.Element {
  const id = useId();
  const input = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (autoFocus) input.current?.focus();
  }, []);
  return (
    <Frame id={id} {...frame}>
      <input
        ref={input}
        id={id}
        class={`input${isMono ? " mono" : ""}`}
        type={type as "text"}
        step={type === "datetime-local" ? "1" : undefined}
        value={value}
        placeholder={placeholder}
        autoComplete={autoComplete}
        inputMode={inputMode}
        spellcheck={false}
        list={list ? `${id}-list` : undefined}
        aria-invalid={frame.wrong ? true : undefined}
        aria-describedby={frame.wrong || frame.hint ? `${id}-hint` : undefined}
        onInput={(event) => onChange(event.currentTarget.value)}
      />
      {list && (
        <datalist id={`${id}-list`}>
          {list.map((entry) => (
            <option key={entry} value={entry} />
          ))}
        </datalist>
      )}
    </Frame>
  );
}

export interface Choice<Value extends string> {
  readonly value: Value;
  readonly label: string;
}

export function SelectField<Value extends string>({
  value,
  choices,
  onChange,
  ...frame
}: FieldProps & {
  readonly value: Value;
  readonly choices: readonly Choice<Value>[];
  readonly onChange: (value: Value) => void;
}): JSX.Element {
  const id = useId();
  return (
    <Frame id={id} {...frame}>
      <span class="select">
        <select id={id} class="input" value={value} onChange={(event) => onChange(event.currentTarget.value as Value)}>
          {choices.map((choice) => (
            <option key={choice.value} value={choice.value} selected={choice.value === value}>
              {choice.label}
            </option>
          ))}
        </select>
        <Icon name="down" size={14} />
      </span>
    </Frame>
  );
}

export function AreaField({
  value,
  onChange,
  rows = 4,
  ...frame
}: FieldProps & { readonly value: string; readonly onChange: (value: string) => void; readonly rows?: number }): JSX.Element {
  const id = useId();
  return (
    <Frame id={id} {...frame}>
      <textarea id={id} class="input mono" rows={rows} value={value} spellcheck={false} onInput={(event) => onChange(event.currentTarget.value)} />
    </Frame>
  );
}

export function CheckField({
  label,
  isOn,
  onChange,
  hint,
}: {
  readonly label: ComponentChildren;
  readonly isOn: boolean;
  readonly onChange: (isOn: boolean) => void;
  readonly hint?: string;
}): JSX.Element {
  return (
    <label class="check" title={hint}>
      <input type="checkbox" checked={isOn} onChange={(event) => onChange(event.currentTarget.checked)} />
      <span>{label}</span>
    </label>
  );
}

/** A choice among a few, all in sight. */
export function Segments<Value extends string>({
  label,
  value,
  choices,
  onChange,
}: {
  readonly label: string;
  readonly value: Value;
  readonly choices: readonly Choice<Value>[];
  readonly onChange: (value: Value) => void;
}): JSX.Element {
  const name = useId();
  return (
    <div class="segments" role="radiogroup" aria-label={label}>
      {choices.map((choice) => (
        <label key={choice.value} class={choice.value === value ? "segment on" : "segment"}>
          <input type="radio" class="visually-hidden" name={name} value={choice.value} checked={choice.value === value} onChange={() => onChange(choice.value)} />
          <span>{choice.label}</span>
        </label>
      ))}
    </div>
  );
}

/** The field that `/` goes to; what is typed counts after a moment's rest. */
export function SearchField({
  value,
  onChange,
  label,
}: {
  readonly value: string;
  readonly onChange: (value: string) => void;
  readonly label: string;
}): JSX.Element {
  const [text, setText] = useState(value);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => setText(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const typed = (next: string): void => {
    setText(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange(next), 200);
  };
  return (
    <span class="search">
      <Icon name="search" />
      <input class="input" type="search" data-search="true" value={text} placeholder={label} aria-label={label} autoComplete="off" spellcheck={false} onInput={(event) => typed(event.currentTarget.value)} />
      <kbd aria-hidden="true">/</kbd>
    </span>
  );
}

/** A button with a list of actions behind it. */
export function Menu({
  label,
  icon,
  children,
  isSmall = false,
}: {
  readonly label: string;
  readonly icon?: JSX.Element;
  readonly children: ComponentChildren;
  readonly isSmall?: boolean;
}): JSX.Element {
  const box = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const close = (event: Event): void => {
      if (box.current?.open && !event.composedPath().includes(box.current)) box.current.open = false;
    };
    document.addEventListener("click", close);
    return () => document.removeEventListener("click", close);
  }, []);
  return (
    <details
      ref={box}
      class="menu"
      onKeyDown={(event) => {
        if (event.key !== "Escape" || !box.current?.open) return;
        box.current.open = false;
        box.current.querySelector("summary")?.focus();
        event.stopPropagation();
      }}
    >
      <summary class={`button${isSmall ? " small" : ""}`}>
        {icon}
        {label}
        <Icon name="down" size={14} />
      </summary>
      <div
        class="menu-items"
        onClick={(event) => {
          const target = event.target as Element;
          if (box.current && target.closest("[data-closes], a, button:not([data-stays])")) box.current.open = false;
        }}
      >
        {children}
      </div>
    </details>
  );
}

/** Views of one thing. */
export function Tabs({
  label,
  tabs,
  current,
}: {
  readonly label: string;
  readonly tabs: readonly { readonly key: string; readonly label: string; readonly href: string; readonly count?: string | null }[];
  readonly current: string;
}): JSX.Element {
  return (
    <nav class="tabs" aria-label={label}>
      {tabs.map((tab) => (
        <a key={tab.key} href={tab.href} class="tab" aria-current={tab.key === current ? "page" : undefined}>
          {tab.label}
          {tab.count && <span class="tab-count">{tab.count}</span>}
        </a>
      ))}
    </nav>
  );
}
