// Security: entries of access control, users, quotas, and who may do what and why.

import type { JSX } from "preact";
import { Heading } from "../parts/basics";
import { Tabs } from "../parts/fields";
import { to } from "../state/routes";
import { Acls } from "./acls";
import { Explain } from "./explain";
import { Quotas } from "./quotas";
import { Users } from "./users";

const TABS = [
  ["acls", "ACLs"],
  ["explain", "Who may do what"],
  ["users", "Users"],
  ["quotas", "Quotas"],
] as const;

export function SecurityView({ parts }: { readonly parts: readonly string[] }): JSX.Element {
  const tab = TABS.find(([key]) => key === parts[0])?.[0] ?? "acls";
  return (
    <>
      <Heading title="Security" />
      <Tabs label="Security" current={tab} tabs={TABS.map(([key, label]) => ({ key, label, href: to("security", key) }))} />
      {tab === "acls" && <Acls />}
      {tab === "explain" && <Explain />}
      {tab === "users" && <Users />}
      {tab === "quotas" && <Quotas />}
    </>
  );
}
