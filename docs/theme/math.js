// Draws the formulas of a page: pymdownx.arithmatex marks them as \(...\) and \[...\].
for (const place of document.querySelectorAll(".arithmatex")) {
  const text = place.textContent.trim();
  katex.render(text.slice(2, -2), place, { displayMode: text.startsWith("\\[") });
}
