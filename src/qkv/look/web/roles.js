// The roles of heads: their names in plain words, the marks in the grid, and a list with the clearest head of each role.

import { createElement } from "./dom.js";

/** @typedef {{role: string, score: number, baseline: number, sentences?: number}} Role */

/** What a head with a role attends to, and its mark in the grid. @type {Record<string, [string, string]>} */
const ROLES = {
  pronoun: ["◆", "from pronouns to one other word"],
  coreference: ["◆", "from pronouns to the word they stand for"],
  previous: ["←", "the previous token"],
  next: ["→", "the next token"],
  duplicate: ["=", "the same word elsewhere"],
  induction: ["↻", "what followed the same word before"],
  self: ["•", "the token itself"],
  first: ["⇤", "the first token"],
  separator: ["‖", "the separator"],
  broad: ["≈", "many tokens equally"],
};
/** Score from which on a role is marked in the grid. */
const MARKED = 0.5;

/** @param {string} role */
const describeRole = (role) => ROLES[role]?.[1] || role;

/** Pronouns of English, whose rows show what heads of the roles `pronoun` and `coreference` do. */
const PRONOUN = /^[^a-z]*(?:he|she|it|they|him|her|them|his|hers|its|their|theirs|who|whom)$/i;

/** Return the index of the first word that shows what a head with a role does; −1: any word. @param {string} role @param {string[]} words */
export const exampleWord = (role, words) => (["pronoun", "coreference"].includes(role) ? words.findIndex((word) => PRONOUN.test(word)) : -1);

/** Roles that most models have in many heads, whose marks are less prominent. */
const COMMON = ["self", "first", "separator", "broad"];

/** Return the mark of the first role of a head, or null if it has none.
 *  @param {Role[]} roles @returns {{text: string, common: boolean} | null} */
export function markOf(roles) {
  const order = Object.keys(ROLES);
  const clear = roles.filter(({ score }) => score >= MARKED).map(({ role }) => role);
  const [role] = clear.sort((a, b) => order.indexOf(a) - order.indexOf(b));
  return role ? { text: symbolOf(role), common: COMMON.includes(role) } : null;
}

/** @param {string} role */
const symbolOf = (role) => ROLES[role]?.[0] || role.slice(0, 2);

/** Say what a head does, as a badge. @param {Role} role */
export function badgeText({ role, score, baseline, sentences }) {
  const numbers = `${score.toFixed(2)} (baseline ${baseline.toFixed(2)})`;
  const where = sentences ? `over ${sentences.toLocaleString("en")} sentences` : "in this text";
  return `attends to ${describeRole(role)}`.replace("to from", "from") + `: ${numbers} ${where}`;
}

/** Explain the numbers of a badge. @param {Role} role */
export function explainScore({ role, sentences }) {
  if (role === "pronoun" && !sentences) return "Score: mean over the pronouns. Baseline: the mean weight that the other words give to the same words, at least that of uniform weights.";
  return sentences && (role === "coreference" || !ROLES[role])
    ? "Score: share of the questions that the head answers. Baseline: that of the better of two rules without a model, the nearest candidate and a fixed offset."
    : "Baseline: the score of a head that attends to all tokens equally.";
}

/** Return the best head of each role, the clearest roles first.
 *  @param {Record<string, Role[]>} roles by "layer,head"
 *  @returns {{role: string, layer: number, head: number, one: Role, clear: number}[]} `clear`: how many heads have the role */
export function roleHeads(roles) {
  const heads = /** @type {Map<string, {place: string, one: Role}[]>} */ (new Map());
  for (const [at, all] of Object.entries(roles)) {
    for (const one of all) heads.set(one.role, [...(heads.get(one.role) || []), { place: at, one }]);
  }
  const order = [...new Set([...Object.keys(ROLES), ...heads.keys()])].filter((role) => heads.has(role));
  return order.map((role) => {
    const all = /** @type {{place: string, one: Role}[]} */ (heads.get(role));
    const best = all.reduce((a, b) => (b.one.score - b.one.baseline > a.one.score - a.one.baseline ? b : a));
    const [layer, head] = best.place.split(",").map(Number);
    return { role, layer, head, one: best.one, clear: all.filter(({ one }) => one.score >= MARKED).length };
  });
}

/** Fill a list with a button for each role, which selects the head of the largest score.
 *  @param {HTMLElement} place @param {Record<string, Role[]>} roles by "layer,head"
 *  @param {(layer: number, head: number, role: string) => void} onSelect */
export function fillRoles(place, roles, onSelect) {
  const best = roleHeads(roles);
  const measured = best.some(({ one }) => one.sentences);
  const rows = best.map(({ role, layer, head, one, clear }) => {
    const others = createElement("span", { class: "others", text: clear > 1 ? `, ${clear - 1} more` : "" });
    return createElement("li", {}, [
      createElement("button", {
        class: "role", onclick: () => onSelect(layer, head, role), title: `${badgeText(one)}. ${explainScore(one)}`,
        "aria-label": `${describeRole(role)}: select layer ${layer}, head ${head}`,
      }, [
        createElement("span", { class: "mark", text: symbolOf(role) }),
        createElement("span", { class: "what", text: describeRole(role) }),
        createElement("span", { class: "where" }, [document.createTextNode(`layer ${layer}, head ${head}: ${one.score.toFixed(2)}`), others]),
      ]),
    ]);
  });
  place.hidden = rows.length === 0;
  place.replaceChildren(
    createElement("p", { text: measured ? "Which head attends to what" : "Which head attends to what in this text" }),
    createElement("ul", { class: "roles" }, rows),
  );
}
