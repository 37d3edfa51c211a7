// The page's frame: navigation, what the cluster is called, who is logged in, the banner of what is
// wrong now, and the view of the address.

import type { ComponentType, JSX } from "preact";
import { useEffect } from "preact/hooks";
import { Banner } from "./parts/banner";
import { Empty, Skeleton, StartFailed } from "./parts/basics";
import { Announcements } from "./parts/dialog";
import { KeyList } from "./parts/keys";
import { Navigation } from "./parts/navigation";
import { stop, watch } from "./state/overview";
import { forgetAnswers } from "./state/resource";
import { parts, to } from "./state/routes";
import { session, startProblem, state } from "./state/session";
import { visible } from "./text/visible";
import { BrokersView } from "./views/brokers";
import { GroupsView } from "./views/groups";
import { Login } from "./views/login";
import { OverviewView } from "./views/overview";
import { QuorumView } from "./views/quorum";
import { SchemasView } from "./views/schemas";
import { SecurityView } from "./views/security";
import { TopicView } from "./views/topic";
import { TopicsView } from "./views/topics";
import { TransactionsView } from "./views/transactions";

type View = ComponentType<{ readonly parts: readonly string[] }>;

const VIEWS: Readonly<Record<string, View>> = {
  groups: GroupsView,
  transactions: TransactionsView,
  quorum: QuorumView,
  brokers: BrokersView,
  security: SecurityView,
  schemas: SchemasView,
};

const TITLES: Readonly<Record<string, string>> = {
  "": "Overview",
  topics: "Topics",
  groups: "Groups",
  transactions: "Transactions",
  quorum: "Quorum",
  brokers: "Brokers",
  security: "Security",
  schemas: "Schemas",
};

export function App(): JSX.Element {
  const principal = session.value?.principal;
  const cluster = session.value?.cluster_id;
  useEffect(() => {
    if (state.value !== "ready") return undefined;
    forgetAnswers();
    watch();
    return stop;
  }, [state.value, principal, cluster]);
  const [room = "", name] = parts.value;
  useEffect(() => {
    const title = TITLES[room] ?? "Moldau";
    document.title = name && name !== "~" ? `${visible(name)} · ${title} · Moldau` : `${title} · Moldau`;
  }, [room, name]);
  if (state.value === "loading") return <Starting />;
  if (state.value === "login") return <Login />;
  if (state.value === "failed" && startProblem.value) return <StartFailed problem={startProblem.value} />;
  return (
    <div class="frame">
      <a class="skip" href="#main">
        Skip to the content
      </a>
      <Navigation room={room} />
      <div class="content">
        <Banner />
        <main id="main" tabIndex={-1}>
          <Room room={room} rest={parts.value.slice(1)} />
        </main>
      </div>
      <KeyList />
      <Announcements />
    </div>
  );
}

function Starting(): JSX.Element {
  return (
    <div class="frame">
      <div class="side" />
      <div class="content">
        <main id="main" tabIndex={-1} aria-busy="true">
          <h1 class="visually-hidden">Moldau</h1>
          <Skeleton lines={6} />
        </main>
      </div>
    </div>
  );
}

function Room({ room, rest }: { readonly room: string; readonly rest: readonly string[] }): JSX.Element {
  if (room === "") return <OverviewView />;
  if (room === "topics") return rest.length === 0 ? <TopicsView /> : <TopicView parts={rest} />;
  const Found = VIEWS[room];
  if (Found) return <Found key={room} parts={rest} />;
  return (
    <Empty title="No such view" action={<a class="button" href={to("")}>Overview</a>}>
      Nothing of the console has this address.
    </Empty>
  );
}
