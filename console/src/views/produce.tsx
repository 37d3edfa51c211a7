// Producing one record.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import * as api from "../api/cluster";
import type { Topic } from "../api/types";
import { Confirm } from "../parts/dialog";
import { Editor } from "../parts/editor";
import { Segments, SelectField, TextField } from "../parts/fields";
import { Icon } from "../parts/icons";
import { command, each, option, quote } from "../text/command";
import { count } from "../text/numbers";
import { bytesOf } from "../text/visible";

type Kind = "json" | "text" | "base64" | "null";

interface Header {
  readonly name: string;
  readonly value: string;
}

function wrongValue(kind: Kind, text: string): string | null {
  if (kind === "json") {
    try {
      JSON.parse(text);
    } catch (error) {
      return error instanceof Error ? error.message : "This is no JSON.";
    }
  }
  if (kind === "base64" && bytesOf(text) === null) return "This is no base64.";
  return null;
}

/** JSON goes out in one line, with the digits of its numbers as they were typed. */
function compactJson(text: string): string {
  return text.replaceAll(/("(?:[^"\\]|\\.)*")|\s+/g, (_all, quoted: string | undefined) => quoted ?? "");
}

export function Produce({ topic, onClose, onDone }: { readonly topic: Topic; readonly onClose: () => void; readonly onDone: () => void }): JSX.Element {
  const [partition, setPartition] = useState("");
  const [key, setKey] = useState("");
  const [kind, setKind] = useState<Kind>("json");
  const [text, setText] = useState("{\n  \n}");
  const [headers, setHeaders] = useState<readonly Header[]>([]);
  const wrong = wrongValue(kind, text);
  const value = kind === "json" ? compactJson(text) : text;
  const named = headers.filter((header) => header.name !== "");
  const line =
    kind === "null" || kind === "base64"
      ? null
      : `printf %s ${quote(value)} | ${command("produce", topic.name, option("--key", key), partition !== "" && ["--partition", partition], each("--header", named.map((header) => `${header.name}=${header.value}`)), "--format", "raw", "-")}`;
  return (
    <Confirm
      title={`Produce to ${topic.name}`}
      action="Produce"
      isWide
      isReady={wrong === null}
      command={line}
      says={
        <>
          Appends one record{kind === "null" ? " without a value (a tombstone)" : ""} to{" "}
          {partition === "" ? (key === "" ? "a partition of the producer's choice" : "the partition of its key") : `partition ${partition}`}, and waits for all
          replicas of the ISR (acks=all).
        </>
      }
      onDo={async () => {
        const done = await api.messages.produce(topic.name, {
          ...(partition === "" ? {} : { partition: Number(partition) }),
          key: key === "" ? null : { encoding: "utf-8", text: key },
          value: kind === "null" ? null : { encoding: kind === "base64" ? "base64" : "utf-8", text: value },
          headers: named.map((header) => ({ name: header.name, value: { encoding: "utf-8", text: header.value } })),
        });
        onDone();
        return `Written to partition ${done.partition} at offset ${count(done.offset)}.`;
      }}
      onClose={onClose}
    >
      <div class="fields">
        <TextField label="Key" value={key} onChange={setKey} isMono placeholder="none" />
        <SelectField label="Partition" value={partition} onChange={setPartition} choices={[{ value: "", label: "By the key" }, ...topic.partitions.map((entry) => ({ value: String(entry.partition), label: `Partition ${entry.partition}` }))]} />
      </div>
      <div class="field">
        <span class="label-line">
          <span class="label">Value</span>
          <Segments
            label="The value is"
            value={kind}
            onChange={setKind}
            choices={[
              { value: "json", label: "JSON" },
              { value: "text", label: "Text" },
              { value: "base64", label: "Base64" },
              { value: "null", label: "Null" },
            ]}
          />
        </span>
        {kind === "null" ? (
          <p class="hint">A tombstone: in a compacted topic it deletes what has the same key.</p>
        ) : (
          <Editor label="Value" language="json" value={text} onChange={setText} isInvalid={wrong !== null} />
        )}
        {kind !== "null" && wrong && <span class="wrong">{wrong}</span>}
      </div>
      <div class="field">
        <span class="label">Headers</span>
        {headers.map((header, index) => (
          <div class="header-line" key={index}>
            <input class="input mono" aria-label={`Name of header ${index + 1}`} placeholder="name" value={header.name} onInput={(event) => setHeaders(replaced(headers, index, { ...header, name: event.currentTarget.value }))} />
            <input class="input mono" aria-label={`Value of header ${index + 1}`} placeholder="value" value={header.value} onInput={(event) => setHeaders(replaced(headers, index, { ...header, value: event.currentTarget.value }))} />
            <button type="button" class="icon-button" aria-label={`Remove header ${index + 1}`} onClick={() => setHeaders(headers.filter((_, at) => at !== index))}>
              <Icon name="close" />
            </button>
          </div>
        ))}
        <button type="button" class="button small" onClick={() => setHeaders([...headers, { name: "", value: "" }])}>
          <Icon name="plus" />
          Add a header
        </button>
      </div>
    </Confirm>
  );
}

function replaced(headers: readonly Header[], index: number, header: Header): readonly Header[] {
  return headers.map((old, at) => (at === index ? header : old));
}
