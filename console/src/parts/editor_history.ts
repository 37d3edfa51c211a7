// Undo and redo of one editor. Owns: what has been changed. Invariant: at most MOST_STEPS are kept.
// What is typed within a moment is one step.

import { Annotation, type ChangeSet, type EditorSelection, type Extension } from "@codemirror/state";
import { EditorView, keymap } from "@codemirror/view";

interface Step {
  readonly changes: ChangeSet;
  readonly selection: EditorSelection;
  readonly at: number;
}

const MOST_STEPS = 200;
const TOGETHER_MS = 600;
const isStep = Annotation.define<boolean>();

/** Ctrl-Z (Cmd-Z) takes back, with Shift (or Ctrl-Y) does again. */
export function undoing(): Extension {
  let past: Step[] = [];
  let future: Step[] = [];
  const step = (view: EditorView, from: Step[], onto: Step[]): boolean => {
    const last = from.pop();
    if (!last) return true;
    const { doc, selection } = view.state;
    onto.push({ changes: last.changes.invert(doc), selection, at: 0 });
    view.dispatch({ changes: last.changes, selection: last.selection, annotations: isStep.of(true), scrollIntoView: true });
    return true;
  };
  const undo = (view: EditorView): boolean => step(view, past, future);
  const redo = (view: EditorView): boolean => step(view, future, past);
  return [
    keymap.of([
      { key: "Mod-z", run: undo, shift: redo, preventDefault: true },
      { key: "Mod-y", run: redo, preventDefault: true },
    ]),
    EditorView.updateListener.of((update) => {
      if (!update.docChanged || update.transactions.some((each) => each.annotation(isStep))) return;
      const changes = update.changes.invert(update.startState.doc);
      const at = Date.now();
      const last = past.at(-1);
      if (last && at - last.at < TOGETHER_MS) {
        past[past.length - 1] = { changes: changes.compose(last.changes), selection: last.selection, at };
      } else past = [...past, { changes, selection: update.startState.selection, at }].slice(-MOST_STEPS);
      future = [];
    }),
  ];
}
