/** Submit a job: choose data and preset, change what matters, see the plan, then submit. The document is shown as JSON. */

import { api, path, query } from "../core/api.js";
import { asText, parseDocument } from "../core/document.js";
import { useReading } from "../core/live.js";
import { go, link } from "../core/router.js";
import { html, useEffect, useRef, useState } from "../core/ui.js";
import { Heading, Problem } from "../parts/common.js";
import { PlanCard } from "./submit_plan.js";
import { Fields } from "./submit_fields.js";

export function SubmitView({ params }) {
  const draft = useDraftDocument(params);
  const { document, text } = draft;
  const [plan, setPlan] = useState(null);
  const [error, setError] = useState(null);
  const [busy, setBusy] = useState(null);
  const key = useRef({ text: null, value: null });
  const presets = useReading(() => api("/v1/presets"), []).data?.data ?? [];
  const datasets = useReading(() => api(`/v1/datasets${query({ limit: 200 })}`), []);
  const planned = plan !== null && plan.text === text;
  const problems = [...(planned ? plan.plan.problems : []), ...(error?.text === text ? error.error.errors : [])];

  const doing = async (what, action) => {
    setBusy(what);
    setError(null);
    try {
      await action();
    } catch (failure) {
      setError({ text, error: failure });
    } finally {
      setBusy(null);
    }
  };
  const makePlan = () =>
    doing("plan", async () => setPlan({ text, plan: await api("/v1/jobs/plan", { method: "POST", json: document }) }));
  const submit = () =>
    doing("submit", async () => {
      if (key.current.text !== text) key.current = { text, value: newKey() }; // asked again, it is the same job
      const headers = { "Idempotency-Key": key.current.value };
      const job = await api("/v1/jobs", { method: "POST", json: document, headers });
      go(link(["jobs", job.id]));
    });

  return html`<${Heading} title="Submit a job" />
    <div class="submit">
      <form class="submit-form" onSubmit=${(event) => event.preventDefault()} aria-label="Job">
        <${Fields}
          document=${document}
          change=${draft.change}
          presets=${presets}
          datasets=${datasets}
          resolved=${planned ? plan.plan.document : null}
          problems=${problems}
          disabled=${draft.problem !== null}
        />
      </form>
      <div class="submit-side">
        <${JsonEditor} draft=${draft} />
        <div class="submit-buttons">
          <button type="button" class="button" disabled=${busy !== null || draft.problem !== null} onClick=${makePlan}>
            ${busy === "plan" ? "Planning…" : "Plan"}
          </button>
          <button type="button" class="button is-primary" disabled=${busy !== null || !planned || !plan.plan.ok} onClick=${submit}>
            ${busy === "submit" ? "Submitting…" : "Submit"}
          </button>
          <span class="sub">${hint(plan, planned)}</span>
        </div>
        <${PlanCard} plan=${planned ? plan.plan : null} outdated=${plan !== null && !planned} />
        <${Problem} error=${error?.text === text ? error.error : null} />
      </div>
    </div>`;
}

function hint(plan, planned) {
  if (plan === null) return "The plan shows what the job costs, and what stands against it.";
  if (!planned) return "The document has changed: plan again.";
  return plan.plan.ok ? "Nothing stands against it." : "Mend what the plan names, then plan again.";
}

/** The document, as fields and as text; while the text is no document, the fields wait. */
function useDraftDocument(params) {
  const [document, setDocument] = useState(() => startingDocument(params));
  const [text, setText] = useState(() => asText(document));
  const [problem, setProblem] = useState(null);
  const from = params.get("from");
  const latest = useRef({ document, problem: null });
  const keep = (next) => {
    latest.current = { document: next, problem: null };
    setDocument(next);
    setProblem(null);
  };
  // What is altered is the document of this moment: an upload that ends late takes nothing back that was written meanwhile.
  const change = (alter) => {
    if (latest.current.problem !== null) return; // the text is being written: it is not replaced
    const next = alter(latest.current.document);
    keep(next);
    setText(asText(next));
  };
  const type = (typed) => {
    setText(typed);
    try {
      keep(parseDocument(typed));
    } catch (failure) {
      latest.current.problem = failure.message;
      setProblem(failure.message);
    }
  };
  useEffect(() => {
    if (from) api(path`/v1/jobs/${from}`).then((job) => change(() => job.spec), () => {});
  }, [from]);
  return { document, text, problem, change, type };
}

function startingDocument(params) {
  const dataset = params.get("dataset");
  return { preset: "kimi-k2.5", data: dataset ? { dataset } : {} };
}

function JsonEditor({ draft }) {
  return html`<section class="card" aria-labelledby="json">
    <h2 id="json">Document</h2>
    <p class="sub" id="json-help">What is sent to <code>POST /v1/jobs</code>. Any field of the job document can be written here.</p>
    <textarea
      class="code"
      spellcheck="false"
      rows=${Math.min(Math.max(draft.text.split("\n").length, 8), 24)}
      aria-labelledby="json"
      aria-describedby="json-help"
      aria-invalid=${draft.problem ? "true" : undefined}
      value=${draft.text}
      onInput=${(event) => draft.type(event.target.value)}
    ></textarea>
    ${draft.problem && html`<p class="field-problem" role="alert">${draft.problem}</p>`}
  </section>`;
}

/** A key of its own for one submission; also where the page is not served over TLS. */
function newKey() {
  const numbers = crypto.getRandomValues(new Uint8Array(16));
  return `page-${[...numbers].map((one) => one.toString(16).padStart(2, "0")).join("")}`;
}
