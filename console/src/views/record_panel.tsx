// One record whole: value, key, headers and what Kafka knows of it. The arrow keys go to the record
// before and after.

import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import * as api from "../api/cluster";
import { withQuery } from "../api/http";
import { asProblem, type Problem } from "../api/problem";
import type { Bytes, MessageRecord } from "../api/types";
import { Copy, Fact, Facts, Note, ProblemBox } from "../parts/basics";
import { Segments } from "../parts/fields";
import { Icon } from "../parts/icons";
import { JsonText, PlainText, pretty } from "../parts/json";
import { Tag } from "../parts/status";
import { bytes, count, moment, relative } from "../text/numbers";
import { idOf, kindOf } from "../text/records";
import { bytesOf, hexRows, visible } from "../text/visible";

interface Props {
  readonly topic: string;
  readonly record: MessageRecord;
  readonly formats: { readonly key_format: string; readonly value_format: string };
  readonly onStep: (by: 1 | -1) => void;
  readonly onClose: () => void;
}

type Part = "value" | "key" | "headers" | "details";

export function RecordPanel({ topic, record, formats, onStep, onClose }: Props): JSX.Element {
  const [part, setPart] = useState<Part>("value");
  const [whole, setWhole] = useState<MessageRecord | null>(null);
  const [problem, setProblem] = useState<Problem | null>(null);
  const box = useRef<HTMLElement>(null);
  const id = idOf(record);
  useEffect(() => {
    setWhole(null);
    setProblem(null);
  }, [id]);
  useEffect(() => {
    const before = document.activeElement;
    box.current?.focus({ preventScroll: true });
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus({ preventScroll: true });
    };
  }, []);
  useEffect(() => {
    const pressed = (event: KeyboardEvent): void => {
      const target = event.composedPath()[0];
      if (target instanceof HTMLElement && (target.isContentEditable || /^(input|textarea|select)$/i.test(target.tagName))) return;
      if (document.querySelector("dialog[open]")) return;
      if (event.key === "Escape") onClose();
      else if (event.key === "ArrowDown" || event.key === "j") onStep(1);
      else if (event.key === "ArrowUp" || event.key === "k") onStep(-1);
      else return;
      event.preventDefault();
    };
    document.addEventListener("keydown", pressed);
    return () => document.removeEventListener("keydown", pressed);
  }, [onStep, onClose]);
  const load = (): void => {
    api.messages.one(topic, record.partition, record.offset, formats).then(setWhole, (error: unknown) => setProblem(asProblem(error)));
  };
  const shown = whole ?? record;
  const raw = (name: string): string => withQuery(api.messages.onePath(topic), { partition: record.partition, offset: record.offset, part: name });
  return (
    <aside class="panel" ref={box} tabIndex={-1} aria-label={`Record ${record.offset} of partition ${record.partition}`}>
      <header class="panel-head">
        <div>
          <h2>
            Offset {count(record.offset)} <span class="quiet">partition {record.partition}</span>
          </h2>
          <p class="quiet">{moment(record.timestamp_ms)}</p>
        </div>
        <div class="panel-tools">
          <button type="button" class="icon-button" aria-label="The record above" title="Above (↑)" onClick={() => onStep(-1)}>
            <Icon name="up" />
          </button>
          <button type="button" class="icon-button" aria-label="The record below" title="Below (↓)" onClick={() => onStep(1)}>
            <Icon name="down" />
          </button>
          <button type="button" class="icon-button" aria-label="Close the record" title="Close (Esc)" onClick={onClose}>
            <Icon name="close" />
          </button>
        </div>
      </header>
      <Segments
        label="Part of the record"
        value={part}
        onChange={setPart}
        choices={[
          { value: "value", label: "Value" },
          { value: "key", label: "Key" },
          { value: "headers", label: `Headers ${record.headers.length}` },
          { value: "details", label: "Details" },
        ]}
      />
      <div class="panel-body">
        {problem && <ProblemBox problem={problem} />}
        {part === "value" && <BytesView key={`v ${id}`} value={shown.value} name="value" nothing="The value is null: a tombstone. Compaction removes earlier records with this key." raw={raw("value")} onWhole={load} />}
        {part === "key" && <BytesView key={`k ${id}`} value={shown.key} name="key" nothing="The record has no key." raw={raw("key")} onWhole={load} />}
        {part === "headers" && <Headers record={shown} raw={raw} />}
        {part === "details" && <Details record={shown} />}
      </div>
    </aside>
  );
}

type Look = "nice" | "text" | "hex";

function BytesView({
  value,
  name,
  nothing,
  raw,
  onWhole,
}: {
  readonly value: Bytes | null;
  readonly name: string;
  readonly nothing: string;
  readonly raw: string;
  readonly onWhole: () => void;
}): JSX.Element {
  const [look, setLook] = useState<Look>("nice");
  if (value === null) return <Note>{nothing}</Note>;
  const isBinary = value.encoding === "base64";
  const json = isBinary ? null : value.encoding === "utf-8" ? pretty(value.text) : (pretty(value.text) ?? value.text);
  const data = isBinary ? bytesOf(value.text) : new TextEncoder().encode(value.text.slice(0, 8192));
  const isDecoded = value.encoding === "avro" || value.encoding === "protobuf" || value.encoding === "record";
  return (
    <>
      <div class="bytes-head">
        <span class="tags">
          <Tag>{kindOf(value)}</Tag>
          <Tag>{bytes(value.size_bytes)}</Tag>
          {value.schema_id !== null && value.schema_id !== undefined && <Tag tone="accent">schema {value.schema_id}</Tag>}
          {value.subject && <Tag>{value.subject}</Tag>}
        </span>
        <span class="bytes-tools">
          {!isBinary && (
            <Segments
              label="Shown as"
              value={look}
              onChange={setLook}
              choices={[
                ...(json === null ? [{ value: "nice" as const, label: "Text" }] : [{ value: "nice" as const, label: "JSON" }, { value: "text" as const, label: "Text" }]),
                ...(isDecoded ? [] : [{ value: "hex" as const, label: "Bytes" }]),
              ]}
            />
          )}
          <Copy text={value.text} label={`Copy the ${name}`} />
          <a class="icon-button" href={raw} download="" aria-label={`Download the ${name}'s bytes`} title="Download the bytes">
            <Icon name="download" />
          </a>
        </span>
      </div>
      {value.is_truncated && (
        <Note tone="warn">
          Shown is the beginning of {bytes(value.size_bytes)}.{" "}
          <button type="button" class="text-button" onClick={onWhole}>
            Load all of it
          </button>
        </Note>
      )}
      {isBinary || look === "hex" ? <PlainText text={data ? hexRows(data) : value.text} /> : look === "nice" && json !== null ? <JsonText text={json} /> : <PlainText text={value.text} />}
    </>
  );
}

function Headers({ record, raw }: { readonly record: MessageRecord; readonly raw: (name: string) => string }): JSX.Element {
  if (record.headers.length === 0) return <Note>The record has no headers.</Note>;
  return (
    <table class="mini wide">
      <thead>
        <tr>
          <th scope="col">Name</th>
          <th scope="col">Value</th>
          <th scope="col">
            <span class="visually-hidden">Download</span>
          </th>
        </tr>
      </thead>
      <tbody>
        {record.headers.map((header, index) => (
          <tr key={index}>
            <td>
              <code>{visible(header.name)}</code>
            </td>
            <td>
              {header.value === null ? <Tag>null</Tag> : header.value.encoding === "base64" ? <code>{hexRows(bytesOf(header.value.text) ?? new Uint8Array(), 256)}</code> : <code class="wrap">{visible(header.value.text)}</code>}
            </td>
            <td>
              <a class="icon-button" href={raw(`header:${header.name}`)} download="" aria-label={`Download the header ${visible(header.name)}`}>
                <Icon name="download" />
              </a>
            </td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Details({ record }: { readonly record: MessageRecord }): JSX.Element {
  return (
    <Facts>
      <Fact name="Partition">{record.partition}</Fact>
      <Fact name="Offset">{count(record.offset)}</Fact>
      <Fact name={record.timestamp_type === "append" ? "Log append time" : "Create time"}>
        {moment(record.timestamp_ms)} <span class="quiet">{relative(record.timestamp_ms, Date.now())}</span>
      </Fact>
      <Fact name="Milliseconds">
        <span class="mono">{record.timestamp_ms ?? "–"}</span>
      </Fact>
      <Fact name="Key">{record.key_size === null ? "null" : bytes(record.key_size)}</Fact>
      <Fact name="Value">{record.value_size === null ? "null" : bytes(record.value_size)}</Fact>
      <Fact name="Leader epoch">{count(record.leader_epoch)}</Fact>
      <Fact name="Control record">{record.is_control ? "yes: the end of a transaction" : "no"}</Fact>
    </Facts>
  );
}
