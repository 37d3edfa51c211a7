// CodeMirror for one field, in a shadow root: there it makes its styles as objects, which the page's
// Content-Security-Policy allows, and no style element. A chunk that only `editor.tsx` loads.

import { EditorState, type Extension } from "@codemirror/state";
import { Decoration, EditorView, keymap, MatchDecorator, placeholder, ViewPlugin, type DecorationSet, type ViewUpdate } from "@codemirror/view";
import type { EditorProps } from "./editor";
import { undoing } from "./editor_history";

export interface EditorHandle {
  readonly setText: (text: string) => void;
  readonly destroy: () => void;
}

const TOKENS = {
  filter:
    /("(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)|\b(and|or|not|in|contains|startswith|endswith|AND|OR|NOT|IN)\b|\b(\d+(?:\.\d+)?)\b|\b(true|false|null)\b|\b(topic|partition|offset|timestamp|key|value|headers)\b/g,
  json: /("(?:[^"\\]|\\.)*"(?=\s*:))|("(?:[^"\\]|\\.)*"?)|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|\b(true|false|null)\b/g,
} as const;

const CLASSES = {
  filter: ["tok-text", "tok-word", "tok-number", "tok-word", "tok-name"],
  json: ["tok-name", "tok-text", "tok-number", "tok-word"],
} as const;

function colours(language: "filter" | "json"): Extension {
  const classes = CLASSES[language];
  const decorator = new MatchDecorator({
    regexp: TOKENS[language],
    decoration: (match) => {
      const group = match.slice(1).findIndex((part) => part !== undefined);
      return Decoration.mark({ class: classes[group] ?? "" });
    },
  });
  return ViewPlugin.fromClass(
    class {
      decorations: DecorationSet;

      constructor(view: EditorView) {
        this.decorations = decorator.createDeco(view);
      }

      update(update: ViewUpdate): void {
        this.decorations = decorator.updateDeco(update, this.decorations);
      }
    },
    { decorations: (plugin) => plugin.decorations },
  );
}

const look = EditorView.theme({
  "&": { color: "var(--text)", backgroundColor: "transparent", fontSize: "12.5px" },
  "&.cm-focused": { outline: "none" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "20px", overflow: "auto" },
  ".cm-content": { padding: "6px 0", caretColor: "var(--accent)" },
  ".cm-line": { padding: "0 10px" },
  ".cm-placeholder": { color: "var(--text-3)" },
  ".tok-text": { color: "var(--j-text)" },
  ".tok-word": { color: "var(--j-word)", fontWeight: "500" },
  ".tok-number": { color: "var(--j-number)" },
  ".tok-name": { color: "var(--j-name)" },
});

const tall = EditorView.theme({ ".cm-scroller": { minHeight: "150px", maxHeight: "320px" } });

/** Puts an editor into an element. */
export function edit(host: HTMLElement, props: () => EditorProps): EditorHandle {
  const root = host.shadowRoot ?? host.attachShadow({ mode: "open" });
  root.replaceChildren();
  const { language, label, value } = props();
  const isLine = language === "filter";
  let isOutside = false;
  const enter = {
    key: "Enter",
    run: (view: EditorView): boolean => {
      if (isLine) props().onEnter?.();
      else newLine(view);
      return true;
    },
  };
  const extensions: Extension[] = [
    undoing(),
    keymap.of([enter]),
    look,
    colours(language),
    EditorView.contentAttributes.of({ "aria-label": label, spellcheck: "false", "data-gramm": "false" }),
    EditorView.updateListener.of((update) => {
      if (update.docChanged && !isOutside) props().onChange(update.state.doc.toString());
    }),
    isLine ? oneLine : tall,
    EditorView.lineWrapping,
  ];
  const hint = props().placeholder;
  if (hint) extensions.push(placeholder(hint));
  const view = new EditorView({ root, parent: root, state: EditorState.create({ doc: value, extensions }) });
  return {
    setText: (text) => {
      if (text === view.state.doc.toString()) return;
      isOutside = true;
      view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } });
      isOutside = false;
    },
    destroy: () => view.destroy(),
  };
}

/** A line end, with the indent of the line before. */
function newLine(view: EditorView): void {
  const { from, to } = view.state.selection.main;
  const before = view.state.doc.lineAt(from).text.slice(0, from - view.state.doc.lineAt(from).from);
  const indent = /^\s*/.exec(before)?.[0] ?? "";
  const insert = `\n${indent}${/[{[]\s*$/.test(before) ? "  " : ""}`;
  view.dispatch({ changes: { from, to, insert }, selection: { anchor: from + insert.length }, scrollIntoView: true });
}

/** Pasted line ends become spaces. */
const oneLine = EditorState.transactionFilter.of((transaction) =>
  transaction.docChanged && transaction.newDoc.lines > 1
    ? [
        {
          changes: {
            from: 0,
            to: transaction.startState.doc.length,
            insert: transaction.newDoc.toString().replaceAll(/\s*\n\s*/g, " "),
          },
        },
      ]
    : transaction,
);
