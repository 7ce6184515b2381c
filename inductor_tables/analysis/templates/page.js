"use strict";
{
  const table = document.getElementById("table");
  const form = document.getElementById("filters");
  const card = document.getElementById("card");
  const heads = [...table.tHead.rows[0].cells];
  const boxes = [...form.querySelectorAll("[type=checkbox]")];
  const facets = [...new Set(boxes.map((box) => box.name))];
  const order = new Intl.Collator("en", { numeric: true });
  const rows = [...table.tBodies].map(readRow);
  const total = sum(rows);
  let near = null; // the row or point that the pointer is on
  let beside = null; // the one that the card is of
  let waiting = 0;

  function readRow(body, index) {
    const [line] = body.rows;
    const content = body.querySelector("template").content;
    const texts = [line, ...content.querySelectorAll("code, li, dd")].map((e) => e.textContent);
    return {
      body,
      line,
      content,
      index,
      us: Number(body.dataset.us),
      text: texts.join(" ").toLowerCase(),
      facets: Object.fromEntries(facets.map((name) => [name, body.dataset[name].split(" ")])),
      values: [...line.cells].map((cell, i) => valueOf(cell, heads[i].dataset.kind)),
      button: line.querySelector("button"),
      point: document.querySelector(`.point[data-index="${index}"]`),
    };
  }

  function valueOf(cell, kind) {
    const text = cell.dataset.value ?? cell.textContent.trim();
    if (kind === "text") return text;
    return text === "" ? null : Number(text);
  }

  function sum(some) {
    return some.reduce((us, row) => us + row.us, 0);
  }

  // Sorting: equal ones stay as they were sorted before, what has no value comes last.

  function sortBy(column) {
    const head = heads[column];
    const numeric = head.dataset.kind === "number";
    const was = head.getAttribute("aria-sort");
    const ascending = was ? was === "descending" : !numeric;
    for (const other of heads) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
    const compare = (a, b) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return (ascending ? 1 : -1) * (numeric ? a - b : order.compare(a, b));
    };
    rows.sort((a, b) => compare(a.values[column], b.values[column]));
    table.append(...rows.map((row) => row.body));
  }

  // Filtering: all words, and of each facet one of the chosen values. A value's count says how
  // many would match if its facet were not asked about.

  function filter() {
    const words = form.elements.text.value.toLowerCase().split(/\s+/);
    const chosen = Object.fromEntries(facets.map((name) => [name, new Set()]));
    for (const box of boxes) if (box.checked) chosen[box.name].add(box.value);
    const counts = new Map();
    const shown = [];
    for (const row of rows) {
      const found = words.every((word) => row.text.includes(word));
      const fails = facets.filter(
        (name) => chosen[name].size && !row.facets[name].some((value) => chosen[name].has(value)),
      );
      row.body.hidden = !found || fails.length > 0;
      row.point?.toggleAttribute("hidden", row.body.hidden);
      if (!row.body.hidden) shown.push(row);
      if (!found || fails.length > 1) continue;
      for (const name of fails.length ? fails : facets) {
        for (const value of row.facets[name]) {
          counts.set(`${name}-${value}`, (counts.get(`${name}-${value}`) ?? 0) + 1);
        }
      }
    }
    for (const box of boxes) box.parentNode.querySelector("output").value = counts.get(box.id) ?? 0;
    document.getElementById("nothing").hidden = shown.length > 0;
    say(shown);
  }

  function clear() {
    form.reset();
    filter();
  }

  function say(shown) {
    const percent = (part, whole) => `${(whole ? (100 * part) / whole : 0).toFixed(1)} %`;
    const us = sum(shown);
    const all = shown.length === rows.length;
    document.getElementById("shown").textContent = all
      ? `${rows.length} GEMMs`
      : `${shown.length} of ${rows.length} GEMMs, ${percent(us, total)} of the time`;
    form.querySelector("[type=reset]").hidden = all;
  }

  // Details: unfolded below their row, or in a card beside the pointer.

  function unfold(row, open = !row.body.classList.contains("open")) {
    hideCard();
    row.body.classList.toggle("open", open);
    row.button.setAttribute("aria-expanded", open);
    if (!open) return row.body.rows[1].remove();
    if (row.body.rows[1]) return undefined;
    const box = document.createElement("div");
    box.append(row.content.cloneNode(true));
    const cell = row.body.insertRow().insertCell();
    cell.className = "details";
    cell.colSpan = heads.length;
    cell.append(box);
    return undefined;
  }

  function showCard(place) {
    if (place.matches(".open > tr")) return;
    beside = place;
    card.replaceChildren(rowAt(place).content.cloneNode(true));
    card.hidden = false;
    placeCard();
  }

  function placeCard() {
    const at = beside.getBoundingClientRect();
    const below = at.bottom + 6 + card.offsetHeight <= innerHeight;
    card.style.top = `${below ? at.bottom + 6 : Math.max(4, at.top - card.offsetHeight - 6)}px`;
    const left = beside.matches("tr") ? at.left + 100 : at.left;
    card.style.left = `${Math.max(8, Math.min(left, innerWidth - card.offsetWidth - 8))}px`;
  }

  function hideCard() {
    clearTimeout(waiting);
    card.hidden = true;
  }

  function rowAt(element) {
    const other = element.closest("[data-index]");
    if (other) return rows.find((row) => row.index === Number(other.dataset.index));
    return rows.find((row) => row.body === element.closest("tbody"));
  }

  async function copy(button) {
    const text = button.parentNode.querySelector("code");
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(text); // no clipboard here: leave it to the keyboard
      button.textContent = "Selected";
    }
  }

  table.tHead.addEventListener("click", ({ target }) => {
    const head = target.closest("th");
    if (head) sortBy(heads.indexOf(head));
  });

  table.addEventListener("click", ({ target }) => {
    if (target.closest("[data-copy]")) copy(target);
    else if (target.closest("#table > tbody > tr:first-of-type") && getSelection().isCollapsed) {
      unfold(rowAt(target));
    }
  });

  document.addEventListener("click", (event) => {
    const { target } = event;
    const other = target.closest("[data-index]");
    const pick = target.closest("[data-pick]");
    if (other) {
      event.preventDefault();
      const row = rowAt(other);
      if (row.body.hidden) clear();
      unfold(row, true);
      row.body.scrollIntoView({ block: "center" });
      row.button.focus({ preventScroll: true });
      hideCard();
    } else if (pick) {
      clear();
      document.getElementById(pick.dataset.pick).checked = true;
      filter();
    }
  });

  document.addEventListener("pointerover", ({ target, pointerType }) => {
    const now = target.closest(".point, #table > tbody > tr:first-of-type");
    if (now === near || pointerType !== "mouse") return;
    near = now;
    hideCard();
    if (near) waiting = setTimeout(showCard, near.matches("tr") ? 350 : 60, near);
  });

  table.addEventListener("focusin", ({ target }) => {
    if (target.matches("td button:focus-visible")) showCard(target.closest("tr"));
  });
  table.addEventListener("focusout", hideCard);
  document.addEventListener("scroll", () => {
    if (card.hidden) return;
    if (beside.contains(document.activeElement)) placeCard(); // focus scrolls its row into view
    else hideCard();
  });
  document.addEventListener("keydown", ({ key }) => key === "Escape" && hideCard());
  const narrow = matchMedia("(max-width: 640px)");
  const fold = () => document.getElementById("facets").toggleAttribute("open", !narrow.matches);
  narrow.addEventListener("change", fold);
  fold();

  form.addEventListener("input", filter);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => setTimeout(filter));
  filter();
}
