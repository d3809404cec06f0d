/** The fields of the form: those of the job document that people change most. The others are in the JSON. */

import { asText, valueAt, withValue } from "../core/document.js";
import { number } from "../core/format.js";
import { classes, html, useId, useState } from "../core/ui.js";
import { Upload } from "./submit_upload.js";

const GROUPS = [
  {
    title: "Data",
    fields: [
      { pointer: "/data/generate", label: "Who writes the answers", choices: [["", "as in the preset"], [true, "the verifier"], [false, "the file has them"]] },
      { pointer: "/data/max_seq_len", label: "Longest row", kind: "number", unit: "tokens" },
      { pointer: "/data/limit", label: "Use only", kind: "number", unit: "conversations", placeholder: "all" },
      { pointer: "/data/sampling/max_tokens", label: "Longest answer", kind: "number", unit: "tokens" },
    ],
  },
  {
    title: "Verifier",
    fields: [
      { pointer: "/verifier/model", label: "Model", kind: "text" },
      { pointer: "/verifier/endpoint", label: "Reached at", kind: "text", placeholder: "the fleet's own" },
    ],
  },
  {
    title: "Training",
    fields: [
      { pointer: "/train/epochs", label: "Epochs", kind: "number" },
      { pointer: "/train/max_steps", label: "At most", kind: "number", unit: "steps", placeholder: "no limit" },
      { pointer: "/train/lr", label: "Learning rate", kind: "number", step: "any" },
      { pointer: "/train/ttt_steps", label: "TTT steps", kind: "number" },
      { pointer: "/train/gpus", label: "GPUs", kind: "number" },
    ],
  },
  {
    title: "Evaluation",
    fields: [
      { pointer: "/evaluate/gate/min_acceptance_length", label: "Gate: acceptance length at least", kind: "number", step: "any", placeholder: "no gate" },
      { pointer: "/evaluate/compare_to", label: "Compare with draft", kind: "text", placeholder: "none" },
    ],
  },
];

export function Fields({ document, change, presets, datasets, resolved, problems, disabled }) {
  const preset = presets.find(({ name }) => name === document.preset)?.document ?? {};
  const set = (pointer, value) => change((latest) => withValue(latest, pointer, value));
  const shared = { document, set, preset, resolved, problems };
  return html`<fieldset class="fields" disabled=${disabled}>
    <legend class="visually-hidden">Fields of the job</legend>
    <div class="card field-group">
      <${Field} ...${shared} pointer="/name" label="Name" kind="text" placeholder="for people" />
      <${Field} ...${shared} pointer="/preset" label="Preset" choices=${presets.map(({ name }) => [name, name])} />
      <${Dataset} ...${shared} datasets=${datasets} />
      <${Upload}
        onDone=${async (dataset) => {
          await datasets.reload();
          set("/data/dataset", dataset.id);
        }}
      />
    </div>
    ${GROUPS.map(
      ({ title, fields }) => html`<div class="card field-group" role="group" aria-label=${title} key=${title}>
        <h2>${title}</h2>
        <div class="field-grid">${fields.map((field) => html`<${Field} key=${field.pointer} ...${shared} ...${field} />`)}</div>
      </div>`,
    )}
    <div class="card field-group" role="group" aria-label="Metadata"><h2>Metadata</h2><${Metadata} document=${document} set=${set} /></div>
  </fieldset>`;
}

function Dataset(props) {
  const known = props.datasets.data?.data ?? [];
  const choices = known
    .filter(({ kind }) => kind !== "vocabulary")
    .map(({ id, name, rows }) => [id, `${name} · ${number(rows)} rows · ${id}`]);
  return html`<${Field} ...${props} pointer="/data/dataset" label="Dataset" choices=${[["", known.length ? "choose…" : "none uploaded yet"], ...choices]} />`;
}

function Field({ document, set, preset, resolved, problems, pointer, label, kind, unit, choices, placeholder, step }) {
  const id = useId();
  const value = valueAt(document, pointer);
  const filled = valueAt(resolved ?? {}, pointer) ?? valueAt(preset, pointer);
  const wrong = problems.filter((problem) => problem.pointer === pointer);
  const shared = {
    id,
    "aria-invalid": wrong.length ? "true" : undefined,
    "aria-describedby": wrong.length ? `${id}-problem` : undefined,
  };
  return html`<div class=${classes("field", wrong.length && "is-wrong")}>
    <label for=${id}>${label}${unit && html` <span class="sub">${unit}</span>`}</label>
    ${choices
      ? html`<select ...${shared} onChange=${(event) => set(pointer, chosen(choices, event.target.value))}>
          ${withCurrent(choices, value).map(
            ([one, text]) => html`<option value=${String(one)} selected=${String(one) === String(value ?? "")}>${text}</option>`,
          )}
        </select>`
      : html`<input
          ...${shared}
          type=${kind}
          step=${step ?? (kind === "number" ? 1 : undefined)}
          value=${value ?? ""}
          placeholder=${filled === undefined || filled === null ? (placeholder ?? "default") : String(filled)}
          onInput=${(event) => set(pointer, typed(event.target, kind))}
        />`}
    ${wrong.length > 0 && html`<p class="field-problem" id=${`${id}-problem`}>${wrong.map(({ message }) => message).join("; ")}</p>`}
  </div>`;
}

/** What the document says is offered too, also where it is no usual choice. */
function withCurrent(choices, value) {
  if (value === undefined || choices.some(([one]) => one === value)) return choices;
  return [...choices, [value, String(value)]];
}

function chosen(choices, text) {
  const value = choices.find(([one]) => String(one) === text)?.[0] ?? text;
  return value === "" ? undefined : value;
}

function typed(input, kind) {
  if (input.value.trim() === "") return undefined;
  return kind === "number" ? Number(input.value) : input.value;
}

/** Rows of key and value, at most 16. */
function Metadata({ document, set }) {
  const [key, setKey] = useState("");
  const entries = Object.entries(document.metadata ?? {});
  const replace = (next) => set("/metadata", next.length ? Object.fromEntries(next) : undefined);
  const add = () => {
    if (key.trim() && !entries.some(([known]) => known === key.trim())) replace([...entries, [key.trim(), ""]]);
    setKey("");
  };
  return html`${entries.map(
      ([name, value], i) => html`<div class="pair" key=${name}>
        <code>${name}</code>
        <input
          aria-label=${`Value of ${name}`}
          value=${typeof value === "string" ? value : asText(value)}
          onInput=${(event) => replace(entries.map((entry, j) => (i === j ? [name, event.target.value] : entry)))}
        />
        <button type="button" class="button is-small" aria-label=${`Remove ${name}`} onClick=${() => replace(entries.filter((_, j) => i !== j))}>
          Remove
        </button>
      </div>`,
    )}
    ${entries.length < 16 &&
    html`<div class="pair">
      <input
        aria-label="New key"
        placeholder="key"
        maxlength="64"
        value=${key}
        onInput=${(event) => setKey(event.target.value)}
        onKeyDown=${(event) => event.key === "Enter" && (event.preventDefault(), add())}
      />
      <button type="button" class="button is-small" onClick=${add}>Add</button>
    </div>`}`;
}
