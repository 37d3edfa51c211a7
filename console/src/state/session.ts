// Who the person is to the cluster, and which cluster it is. Owns: the session and its token.

import { computed, signal } from "@preact/signals";
import * as cluster from "../api/cluster";
import { onLoginNeeded, setRequestToken } from "../api/http";
import { asProblem, Problem } from "../api/problem";
import type { Session } from "../api/types";

export type State = "loading" | "login" | "ready" | "failed";

export const state = signal<State>("loading");
export const session = signal<Session | null>(null);
export const startProblem = signal<Problem | null>(null);
/** The ways to log in that were known last, for a session that has ended. */
export const waysIn = signal<readonly ("password" | "token")[]>(["password"]);

export const isReadOnly = computed(() => session.value?.read_only ?? true);
export const isOurs = computed(() => session.value?.is_ours ?? false);

function enter(found: Session): void {
  session.value = found;
  waysIn.value = found.login;
  setRequestToken(found.request_token);
  if (found.is_logged_in === false) {
    state.value = "login";
  } else if (found.cluster_id === null) {
    startProblem.value = new Problem(503, "The cluster cannot be reached", found.problem ?? "");
    state.value = "failed";
  } else {
    cluster.setCluster(found.cluster_id);
    state.value = "ready";
  }
}

/** Asks who the person is; the start of the page. */
export async function start(): Promise<void> {
  onLoginNeeded(() => {
    if (state.value === "ready") void restart();
    else state.value = "login";
  });
  await restart();
}

async function restart(): Promise<void> {
  try {
    startProblem.value = null;
    enter(await cluster.session.read());
  } catch (error) {
    const problem = asProblem(error);
    if (problem.isLoginNeeded) {
      state.value = "login";
      return;
    }
    startProblem.value = problem;
    state.value = "failed";
  }
}

/** Tries again after a start that failed. */
export async function retry(): Promise<void> {
  state.value = "loading";
  await restart();
}

/** Logs in; throws a Problem where that is refused. */
export async function logIn(
  credentials: { username: string; password: string } | { token: string },
): Promise<void> {
  enter(await cluster.session.logIn(credentials));
}

/** Logs out: the server forgets the credentials. */
export async function logOut(): Promise<void> {
  await cluster.session.logOut();
  session.value = null;
  setRequestToken(null);
  state.value = "loading";
  await restart();
}
