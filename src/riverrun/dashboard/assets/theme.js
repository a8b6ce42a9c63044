// Before the first paint: the colours that were chosen here, if any. Not a module, so that it runs at once.
(function () {
  try {
    const chosen = localStorage.getItem("riverrun-theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch { /* Storage may be forbidden: then the system's colours. */ }
})();
