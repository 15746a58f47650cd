// Arrows, rows and cells that stand for a path: a click, Enter or Space on one calls `act`.
function followPaths(scope, act) {
  const follow = event => {
    const one = event.target.closest("[data-path]");
    if (!one) return;
    event.preventDefault();
    act(one.dataset.path, one);
  };
  scope.addEventListener("click", follow);
  scope.addEventListener("keydown", event => {
    if (event.key === "Enter" || event.key === " ") follow(event);
  });
}

function markPath(scope, path) {
  for (const one of scope.querySelectorAll("[data-path]")) {
    one.setAttribute("tabindex", 0);
    one.classList.toggle("selected", one.dataset.path === path);
  }
}
