// The texts of an answer: its value and errors, the rows it comes from, and how to ask for it elsewhere.

import { createElement, createTable } from "./dom.js";

/** Create the elements that show an answer, and a function that fills them.
 *  @param {any} meta @param {(open: boolean) => void} onPrinted called when the printed answer is opened or closed */
export function createAnswerPanel(meta, onPrinted) {
  const headline = createElement("p", { class: "headline", role: "status" });
  const statistics = createElement("ul", { class: "statistics" });
  const evidence = createElement("div", { class: "evidence", tabindex: "0", role: "group", "aria-label": "rows of evidence" });
  const remark = createElement("p", { class: "hint" });
  const notes = createElement("ul", { class: "notes" });
  const command = createCopyable("Command");
  const call = createCopyable("Python");
  const printed = createElement("pre", { tabindex: "0", "aria-label": "what the command prints" });
  const shown = createElement("details", { ontoggle: () => onPrinted(/** @type {HTMLDetailsElement} */ (shown).open) }, [
    createElement("summary", { text: "What the command prints" }), printed,
  ]);

  const fill = (/** @type {any} */ answer) => {
    const strong = createElement("strong", { text: answer.found ? answer.estimate : answer.failure });
    strong.classList.toggle("none", !answer.found);
    headline.replaceChildren(createElement("span", { class: "asked", text: `${answer.shown} → ` }), strong, answer.found ? "" : `: ${answer.reason}`);
    statistics.replaceChildren(...[...answer.statistics, ...answer.gradient, answer.fit_note].filter(Boolean).map((text) => createElement("li", { text })));
    statistics.hidden = !statistics.childElementCount;
    fillEvidence(answer);
    notes.replaceChildren(...answer.notes.map((/** @type {string} */ text) => createElement("li", { text })));
    command.set(answer.command);
    call.set(answer.call);
    if (answer.printed !== undefined) printed.textContent = answer.printed;
  };

  const fillEvidence = (/** @type {any} */ answer) => {
    const { columns, rows, measure, hidden } = answer.evidence;
    const caption = `The ${rows.length === 1 ? "row" : `${rows.length} rows`} with the largest weight`;
    const titles = [{ name: "weight" }, ...(measure ? [{ name: measure, numeric: true }] : []), ...columns];
    const lines = rows.map((/** @type {any} */ row) => {
      const bar = createElement("span", { class: row.share < 0 ? "bar negative" : "bar", style: { width: `${Math.round(Math.abs(row.share) * 70)}px` } });
      const cells = row.cells.map((/** @type {string} */ text, /** @type {number} */ i) =>
        createElement("td", { text, class: `${columns[i].role} ${columns[i].numeric ? "number" : ""}` }));
      return createElement("tr", {}, [
        createElement("td", { class: "weight" }, [createElement("span", { class: "digits", text: row.weight }), bar]),
        ...(measure ? [createElement("td", { class: "number", text: row.near })] : []), ...cells,
      ]);
    });
    const styles = titles.map(({ numeric }) => (numeric ? "number" : undefined));
    evidence.replaceChildren(...(rows.length ? [createTable(caption, titles.map(({ name }) => name), lines, styles)] : []));
    const more = hidden ? `${hidden} more column${hidden > 1 ? "s" : ""}` : "";
    remark.textContent = [answer.evidence.remark, more].filter(Boolean).join("; ");
  };

  const parts = [createElement("h2", { text: "The same answer elsewhere" }), command.element, call.element];
  if (meta.printed) parts.push(/** @type {any} */ (shown));
  return {
    fill,
    headline: createElement("div", { class: "told" }, [headline, statistics]),
    evidence: createElement("section", { class: "rows", "aria-label": "evidence" }, [evidence, remark]),
    elsewhere: createElement("section", { class: "elsewhere" }, [
      ...parts, createElement("details", {}, [createElement("summary", { text: "How the answer was computed" }), notes]),
    ]),
  };
}

/** Create a text with a button that copies it. @param {string} title */
function createCopyable(title) {
  const code = createElement("pre", { tabindex: "0", "aria-label": title });
  const button = createElement("button", {
    type: "button", text: "Copy", "aria-label": `Copy the ${title === "Python" ? "Python call" : "command"}`,
    onclick: async () => {
      try {
        await navigator.clipboard.writeText(code.textContent || "");
        button.textContent = "Copied";
      } catch {
        getSelection()?.selectAllChildren(code);
        button.textContent = "Press Ctrl-C";
      }
      setTimeout(() => (button.textContent = "Copy"), 1500);
    },
  });
  const element = createElement("div", { class: "copyable", "data-copy": title.toLowerCase() }, [
    createElement("div", { class: "line" }, [createElement("h3", { text: title }), button]), code,
  ]);
  return {
    element,
    set: (/** @type {string} */ text) => {
      element.hidden = !text;
      code.textContent = text;
    },
  };
}
