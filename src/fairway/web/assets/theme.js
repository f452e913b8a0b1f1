// Runs before the first paint, so that the page never flashes in the other colours.
(() => {
  const kept = localStorage.getItem("fairway-theme");
  if (kept === "light" || kept === "dark") document.documentElement.dataset.theme = kept;
})();
