// Print in the light theme with solutions unfolded, and restore the page afterwards.
let theme = null;
let opened = [];
addEventListener("beforeprint", () => {
  theme = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = "light";
  opened = [...document.querySelectorAll(".bd-article details:not([open])")];
  for (const fold of opened) fold.open = true;
});
addEventListener("afterprint", () => {
  document.documentElement.dataset.theme = theme;
  for (const fold of opened) fold.open = false;
});
