// Filters with a name: those of the configuration, which all see, and the person's own.

import type { JSX } from "preact";
import { useState } from "preact/hooks";
import * as api from "../api/cluster";
import { Dialog } from "../parts/dialog";
import { Menu, TextField } from "../parts/fields";
import { Icon } from "../parts/icons";
import { ownFilters } from "../state/preferences";
import { useResource } from "../state/resource";
import { want, type Wanted } from "./messages_query";

const MOST_FILTERS = 200;

export function FilterMenu({ topic, wanted }: { readonly topic: string; readonly wanted: Wanted }): JSX.Element {
  const [isSaving, setSaving] = useState(false);
  const shared = useResource("saved", (signal) => api.saved(signal)).data?.filters ?? [];
  const ours = shared.filter((filter) => !filter.topic || filter.topic === topic);
  const mine = ownFilters.value.filter((filter) => filter.topic === topic);
  const use = (filter: { where?: string | null; grep?: string | null; key?: string | null }): void => {
    want({ ...wanted, where: filter.where ?? "", grep: filter.grep ?? "", key: filter.key ?? "" });
  };
  const hasFilter = wanted.where !== "" || wanted.grep !== "" || wanted.key !== "";
  return (
    <>
      <Menu label="Filters" icon={<Icon name="star" />} isSmall>
        {ours.length + mine.length === 0 && <p class="menu-note">None saved for this topic yet.</p>}
        {ours.map((filter) => (
          <button key={`shared ${filter.name}`} type="button" class="menu-item" onClick={() => use(filter)}>
            <span>
              {filter.name}
              <code class="clip">{filter.where ?? filter.grep ?? filter.key}</code>
            </span>
          </button>
        ))}
        {mine.map((filter) => (
          <span key={filter.name} class="menu-row">
            <button type="button" class="menu-item" onClick={() => use(filter)}>
              <span>
                {filter.name}
                <code class="clip">{filter.where || filter.grep || filter.key}</code>
              </span>
            </button>
            <button type="button" class="icon-button" data-stays="true" aria-label={`Forget the filter ${filter.name}`} onClick={() => (ownFilters.value = ownFilters.value.filter((entry) => entry !== filter))}>
              <Icon name="trash" />
            </button>
          </span>
        ))}
        {hasFilter && (
          <>
            <button type="button" class="menu-item" onClick={() => setSaving(true)}>
              <Icon name="plus" />
              Save this filter…
            </button>
            <button type="button" class="menu-item" onClick={() => use({})}>
              <Icon name="close" />
              No filter
            </button>
          </>
        )}
      </Menu>
      {isSaving && <SaveFilter topic={topic} wanted={wanted} onClose={() => setSaving(false)} />}
    </>
  );
}

function SaveFilter({ topic, wanted, onClose }: { readonly topic: string; readonly wanted: Wanted; readonly onClose: () => void }): JSX.Element {
  const [name, setName] = useState("");
  const save = (): void => {
    const { where, grep, key } = wanted;
    const others = ownFilters.value.filter((filter) => filter.topic !== topic || filter.name !== name);
    ownFilters.value = [...others, { name, topic, where, grep, key }].slice(-MOST_FILTERS);
    onClose();
  };
  return (
    <Dialog title="Save this filter" onClose={onClose}>
      <form
        onSubmit={(event) => {
          event.preventDefault();
          if (name.trim()) save();
        }}
      >
        <div class="dialog-body">
          <TextField label="Name" value={name} onChange={setName} hint="It is kept in this browser, for this topic." autoFocus />
        </div>
        <footer class="dialog-foot">
          <button type="button" class="button" onClick={onClose}>
            Cancel
          </button>
          <button type="submit" class="button primary" disabled={name.trim() === ""}>
            Save
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
