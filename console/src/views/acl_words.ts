// Kafka's words for access control, and which operation makes sense for which resource.

import type { Acl } from "../api/types";
import { command } from "../text/command";

export const RESOURCES = ["TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN", "USER"] as const;
export type Resource = (typeof RESOURCES)[number];

export const OPERATIONS: Readonly<Record<Resource, readonly string[]>> = {
  TOPIC: ["ALL", "READ", "WRITE", "CREATE", "DELETE", "ALTER", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"],
  GROUP: ["ALL", "READ", "DELETE", "DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"],
  CLUSTER: ["ALL", "CREATE", "ALTER", "DESCRIBE", "CLUSTER_ACTION", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "IDEMPOTENT_WRITE"],
  TRANSACTIONAL_ID: ["ALL", "WRITE", "DESCRIBE", "TWO_PHASE_COMMIT"],
  DELEGATION_TOKEN: ["ALL", "DESCRIBE"],
  USER: ["ALL", "CREATE_TOKENS", "DESCRIBE_TOKENS"],
};

/** Kafka's name as the command line has it: DESCRIBE_CONFIGS as DescribeConfigs. */
export function camel(name: string): string {
  return name
    .toLowerCase()
    .split("_")
    .map((part) => part.charAt(0).toUpperCase() + part.slice(1))
    .join("");
}

const FLAGS: Readonly<Record<string, string>> = {
  TOPIC: "--topic",
  GROUP: "--group",
  TRANSACTIONAL_ID: "--transactional-id",
  DELEGATION_TOKEN: "--delegation-token",
  USER: "--user",
};

/** The option that names a resource. */
export function resourceOptions(type: string, name: string): string[] {
  const flag = FLAGS[type];
  return flag ? [flag, name] : ["--cluster"];
}

/** The command that makes or removes an entry. */
export function aclCommand(what: "create" | "delete", acl: Acl): string {
  const isPrefixed = acl.pattern_type === "PREFIXED";
  if (what === "create") {
    return command(
      "acls",
      "create",
      resourceOptions(acl.resource_type, acl.resource_name),
      isPrefixed && "--prefixed",
      acl.permission === "DENY" ? ["--deny", acl.principal] : ["--allow", acl.principal],
      acl.host !== "*" && ["--host", acl.host],
      ["--operation", camel(acl.operation)],
    );
  }
  return command(
    "acls",
    "delete",
    resourceOptions(acl.resource_type, acl.resource_name),
    ["--pattern", isPrefixed ? "prefixed" : "literal"],
    ["--principal", acl.principal],
    ["--host", acl.host],
    ["--operation", camel(acl.operation)],
    ["--permission", acl.permission.toLowerCase()],
  );
}

/** The entry in a sentence. */
export function sentence(acl: Acl): string {
  const verb = acl.permission === "DENY" ? "may not" : "may";
  const what = acl.operation === "ALL" ? "do everything with" : camel(acl.operation);
  const host = acl.host === "*" ? "" : ` from ${acl.host}`;
  return `${acl.principal} ${verb} ${what} ${resourceText(acl)}${host}.`;
}

/** The resource of an entry. */
export function resourceText(acl: Pick<Acl, "resource_type" | "resource_name" | "pattern_type">): string {
  const type = acl.resource_type.toLowerCase().replaceAll("_", " ");
  if (acl.resource_type === "CLUSTER") return "the cluster";
  if (acl.resource_name === "*" && acl.pattern_type === "LITERAL") return `every ${type}`;
  return acl.pattern_type === "PREFIXED" ? `${type}s that begin with '${acl.resource_name}'` : `${type} '${acl.resource_name}'`;
}
