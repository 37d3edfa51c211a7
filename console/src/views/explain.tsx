// Who may do what, and why: a question to the authorizer, with the entries that decide.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import * as api from "../api/cluster";
import { Command, ProblemBox } from "../parts/basics";
import { SelectField, TextField } from "../parts/fields";
import { State, words } from "../parts/status";
import { useResource } from "../state/resource";
import { queryOf, setQuery } from "../state/routes";
import { session } from "../state/session";
import { command } from "../text/command";
import { visible } from "../text/visible";
import { camel, OPERATIONS, resourceOptions, RESOURCES, sentence, type Resource } from "./acl_words";

export function Explain(): JSX.Element {
  const asked = {
    principal: queryOf("principal"),
    host: queryOf("host") || "127.0.0.1",
    operation: queryOf("operation") || "READ",
    resource_type: queryOf("type") || "TOPIC",
    resource_name: queryOf("resource"),
  };
  const [draft, setDraft] = useState({ ...asked, principal: asked.principal || (session.value?.principal ?? "User:") });
  const isComplete = asked.principal !== "" && (asked.resource_name !== "" || asked.resource_type === "CLUSTER");
  const resource = useResource(isComplete ? `explain ${JSON.stringify(asked)}` : null, (signal) => api.security.explain(asked, signal));
  const type = RESOURCES.find((entry) => entry === draft.resource_type) ?? "TOPIC";
  const change = (part: Partial<typeof draft>): void => setDraft((old) => ({ ...old, ...part }));
  const chooseType = (next: Resource): void =>
    change({ resource_type: next, operation: OPERATIONS[next].includes(draft.operation) ? draft.operation : (OPERATIONS[next][1] ?? "ALL") });
  const ask = (): void => {
    setQuery({
      principal: draft.principal,
      host: draft.host === "127.0.0.1" ? null : draft.host,
      operation: draft.operation,
      type: draft.resource_type,
      resource: type === "CLUSTER" ? "kafka-cluster" : draft.resource_name,
    });
    resource.reload();
  };
  const answer = resource.data;
  return (
    <div class="stack">
      <form
        class="card ask"
        onSubmit={(event) => {
          event.preventDefault();
          ask();
        }}
      >
        <TextField label="May" value={draft.principal} onChange={(principal) => change({ principal })} isMono />
        <SelectField label="do" value={draft.operation} onChange={(operation) => change({ operation })} choices={OPERATIONS[type].filter((value) => value !== "ALL").map((value) => ({ value, label: camel(value) }))} />
        <SelectField label="with" value={type} onChange={chooseType} choices={RESOURCES.map((value) => ({ value, label: words(value) }))} />
        {type !== "CLUSTER" && <TextField label="named" value={draft.resource_name} onChange={(resource_name) => change({ resource_name })} isMono />}
        <TextField label="from" value={draft.host} onChange={(host) => change({ host })} isMono />
        <button type="submit" class="button primary" disabled={draft.principal === "" || (type !== "CLUSTER" && draft.resource_name === "")}>
          Ask
        </button>
      </form>
      {resource.problem && <ProblemBox problem={resource.problem} onRetry={resource.reload} />}
      {answer && isComplete && (
        <section class={`card verdict ${answer.is_allowed ? "ok" : "bad"}`} aria-label="Answer" aria-live="polite">
          <div class="card-body">
            <p class="verdict-word">
              <State tone={answer.is_allowed ? "ok" : "bad"}>{answer.is_allowed ? "Allowed" : "Not allowed"}</State>
            </p>
            <p>{visible(answer.because)}</p>
            {answer.rules.length > 0 && (
              <ul class="rules">
                {answer.rules.map((rule, index) => (
                  <li key={index} class={rule.decides ? "decides" : ""}>
                    <State tone={rule.permission === "DENY" ? "bad" : "ok"}>{visible(sentence(rule))}</State>
                    {rule.decides && <b class="quiet">decides</b>}
                  </li>
                ))}
              </ul>
            )}
            <Command text={command("acls", "check", resourceOptions(asked.resource_type, asked.resource_name), ["--as", asked.principal], ["--operation", camel(asked.operation)], ["--host", asked.host])} />
          </div>
        </section>
      )}
      {!isComplete && <p class="hint">Entries that deny come before those that allow; super users may do everything; without a matching entry it is not allowed, unless the cluster is configured otherwise.</p>}
    </div>
  );
}
