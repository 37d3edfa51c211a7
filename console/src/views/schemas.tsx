// The subjects of the schema registry, where one is configured, and their versions.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import * as api from "../api/cluster";
import type { SubjectRow } from "../api/types";
import { Copy, Empty, Heading, ProblemBox, Skeleton } from "../parts/basics";
import { SearchField, SelectField } from "../parts/fields";
import { JsonText, PlainText, pretty } from "../parts/json";
import { Tag } from "../parts/status";
import { More, Table, type Column, type Order } from "../parts/table";
import { usePages } from "../state/pages";
import { useResource } from "../state/resource";
import { nameIn, queryOf, setQuery, to } from "../state/routes";
import { session } from "../state/session";
import { count, plural } from "../text/numbers";

const LIMIT = 100;

const COLUMNS: readonly Column<SubjectRow>[] = [
  { key: "subject", label: "Subject", className: "grow", sort: (row) => row.subject, cell: (row) => <a class="strong clip" href={to("schemas", row.subject)}>{row.subject}</a> },
  { key: "schema_type", label: "Type", rank: 2, cell: (row) => (row.schema_type ? <Tag>{row.schema_type}</Tag> : <span class="quiet">–</span>) },
  { key: "versions", label: "Versions", isNumber: true, cell: (row) => count(row.versions.length) },
  { key: "newest", label: "Newest", isNumber: true, rank: 2, cell: (row) => row.versions.at(-1) ?? "–" },
  { key: "compatibility", label: "Compatibility", rank: 3, cell: (row) => row.compatibility ?? <span class="quiet">–</span> },
];

export function SchemasView({ parts }: { readonly parts: readonly string[] }): JSX.Element {
  if (!session.value?.has_registry) {
    return (
      <>
        <Heading title="Schemas" />
        <Empty title="No schema registry is configured" icon="schemas" command="moldau console -b HOST:PORT --schema-registry http://localhost:8081">
          With a registry, records in Avro, Protobuf and JSON Schema are shown decoded, and its subjects stand here. Any registry with
          Confluent's API will do.
        </Empty>
      </>
    );
  }
  return parts.length > 0 ? <Subject key={nameIn(parts[0])} name={nameIn(parts[0])} /> : <Subjects />;
}

function Subjects(): JSX.Element {
  const q = queryOf("q");
  const order: Order = { field: "subject", isDescending: queryOf("order") === "desc" };
  const pages = usePages(`schemas ${JSON.stringify([q, order])}`, (after, signal) =>
    api.schemas.list({ q, sort: "subject", order: order.isDescending ? "desc" : "asc", limit: LIMIT, after }, signal),
  );
  return (
    <>
      <Heading title="Schemas" />
      <div class="toolbar">
        <SearchField label="Search subjects" value={q} onChange={(value) => setQuery({ q: value })} />
      </div>
      {pages.problem && !pages.problem.isUnreachable && <ProblemBox problem={pages.problem} onRetry={pages.reload} />}
      {(pages.rows || !pages.problem) && (
        <div class="sheet">
          <Table
            label="Subjects"
            columns={COLUMNS}
            rows={pages.rows}
            rowKey={(row) => row.subject}
            href={(row) => to("schemas", row.subject)}
            order={order}
            onOrder={(next) => setQuery({ order: next.isDescending ? "desc" : null })}
            empty={<Empty title={q ? "No subject like this" : "No schemas yet"} icon="schemas">{q ? "Part of a name is enough." : "Producers with a serializer of the registry add them."}</Empty>}
          />
        </div>
      )}
      <More shown={pages.rows?.length ?? 0} total={pages.total} noun="subjects" onMore={pages.more} isLoading={pages.isLoading} />
    </>
  );
}

function Subject({ name }: { readonly name: string }): JSX.Element {
  const [version, setVersion] = useState("latest");
  const resource = useResource(`schema ${name} ${version}`, (signal) => api.schemas.read(name, version, signal));
  const listed = useResource(`subject ${name}`, (signal) => api.schemas.list({ q: name, limit: LIMIT }, signal));
  const versions = listed.data?.data.find((row) => row.subject === name)?.versions ?? [];
  const found = resource.data;
  const topic = /^(.+)-(key|value)$/.exec(name)?.[1];
  const text = found ? pretty(found.schema) : null;
  return (
    <>
      <Heading title={name} above={<a href={to("schemas")}>Schemas</a>} beside={found && <Tag>{found.schema_type}</Tag>} />
      <div class="toolbar">
        <SelectField label="Version" isHiddenLabel value={version} onChange={setVersion} choices={[{ value: "latest", label: "Newest version" }, ...[...versions].reverse().map((entry) => ({ value: String(entry), label: `Version ${entry}` }))]} />
        {found && <Tag>version {found.version}</Tag>}
        {found && <Tag tone="accent">id {found.id}</Tag>}
        {found && <Copy text={found.schema} label="Copy the schema" />}
        {topic && <a class="quiet-link" href={to("topics", topic)}>Topic {topic}</a>}
      </div>
      {resource.problem && <ProblemBox problem={resource.problem} onRetry={resource.reload} />}
      {!found && !resource.problem && <Skeleton lines={8} />}
      {found && <div class="sheet padded">{text === null ? <PlainText text={found.schema} /> : <JsonText text={text} />}</div>}
      {found?.references && found.references.length > 0 && (
        <p class="hint">
          Needs {plural(found.references.length, "other schema")}:{" "}
          {found.references.map((entry) => (
            <a key={entry.name} href={to("schemas", entry.subject)}>
              {entry.name}
            </a>
          ))}
        </p>
      )}
    </>
  );
}
