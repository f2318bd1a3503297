// Entry point of the exported page of answers, which holds the answers to a grid of queries and makes no requests.

import { renderAnswers } from "./answers.js";
import { fromJson, openPart, partOf } from "./unpack.js";

const savedMeta = JSON.parse(partOf("data"));
const savedGrid = savedMeta.saved;

/** Return the index of the query that is nearest to a place. @param {number[]} at */
function nearestTo(at) {
  const distances = savedGrid.places.map((/** @type {number[]} */ place) =>
    at.reduce((sum, each, axis) => sum + ((each - place[axis]) / savedMeta.keys[axis].span) ** 2, 0));
  return distances.indexOf(Math.min(...distances.filter(Number.isFinite)));
}

/** Return the coordinates of a typed query, or null if they cannot be read. @param {string} text */
function placeOfText(text) {
  const parts = text.split(",").map((part) => part.trim());
  if (parts.length !== savedMeta.keys.length) return null;
  const places = parts.map((part, i) => {
    const { kind } = savedMeta.keys[i];
    if (!part) return NaN;
    if (kind === "date") return Date.parse(/\d{2}:/.test(part) ? `${part.replace(" ", "T")}Z` : part) / 86400000;
    if (kind === "time") return part.split(":").reduce((sum, each, j) => sum + Number(each) / 60 ** j, 0);
    return Number(part);
  });
  return places.every(Number.isFinite) ? places : null;
}

/** Respond to a request of the page, as the server does. @param {any} request */
async function respondFromFile(request) {
  if (request.what === "points") return openPart("points", fromJson);
  const { bandwidths, neighbours } = savedGrid;
  const [row, column] = [bandwidths.indexOf(request.settings.bandwidth), neighbours.indexOf(request.settings.neighbours)].map((at) => Math.max(0, at));
  const every = /** @type {any[]} */ (await openPart(`answers/${row * neighbours.length + column}`, fromJson));
  if (request.what === "curve") {
    const { labels } = savedMeta.value;
    return {
      size: savedGrid.cells, at: every.map((_, i) => savedGrid.places[i][0]), values: every.map(({ value }) => value),
      low: every.map(({ interval }) => interval?.[0] ?? null), high: every.map(({ interval }) => interval?.[1] ?? null),
      labels: every.map((answer) => (answer.shares.length && labels ? Math.max(0, (labels.indexOf(answer.shares[0].label) + labels.length) % labels.length) : null)),
    };
  }
  const exact = request.query === undefined ? -1 : savedGrid.queries.indexOf(request.query.trim());
  if (exact >= 0) return every[exact];
  const at = request.at || placeOfText(request.query);
  if (!at) return { error: `This file cannot read the query ${request.query}: write it like ${savedGrid.queries[0]}, or run the command.` };
  return every[nearestTo(at)];
}

const model = new Map(Object.entries({ meta: savedMeta, respond: respondFromFile, linked: true }));
renderAnswers({ model, el: /** @type {HTMLElement} */ (document.getElementById("look")) });
