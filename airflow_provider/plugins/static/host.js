// The host page's globals, which only this module touches: Airflow shares its React and its router.
import htm from "./vendor/htm.js";

export const React = globalThis.React;
const Router = globalThis.ReactRouterDOM;

/** Whether the host shares all that the page is made of. */
export const isComplete = Boolean(React?.useSyncExternalStore && Router?.Link);

export const html = isComplete ? htm.bind(React.createElement) : () => null;

const queryChanges = new EventTarget();
const subscribe = (notify) => {
  window.addEventListener("popstate", notify);
  queryChanges.addEventListener("change", notify);
  return () => {
    window.removeEventListener("popstate", notify);
    queryChanges.removeEventListener("change", notify);
  };
};

const changeQuery = (query, replace = false) => {
  history[replace ? "replaceState" : "pushState"](history.state, "", `${location.pathname}${query}`);
  queryChanges.dispatchEvent(new Event("change"));
};

/**
 * The query of the address, and a function that changes it, as the router's of that name.
 * The router is not asked: Airflow may mount the page again when the router changes the query, which
 * loses the focus and what is open, or may not, and the page would stay as it was.
 */
export function useSearchParams() {
  const search = React.useSyncExternalStore(subscribe, () => location.search);
  const params = React.useMemo(() => new URLSearchParams(search), [search]);
  const setParams = (change, { replace = false } = {}) =>
    changeQuery(`?${change(new URLSearchParams(location.search))}`, replace);
  return [params, setParams];
}

/** A link: to another view of the page when *to* begins with "?", else to a page of Airflow's. */
export function Link({ to, ...rest }) {
  if (!to.startsWith("?")) return html`<${Router.Link} to=${to} ...${rest} />`;
  const query = to === "?" ? "" : to;
  const onClick = (event) => {
    if (event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    changeQuery(query);
  };
  return html`<a href=${`${location.pathname}${query}`} onClick=${onClick} ...${rest} />`;
}

/** An address below Airflow's own, whatever prefix it has. */
export const addressOf = (path) => new URL(path, document.baseURI);

/** Give the host the component that it renders for the entry of that name. */
export function register(name, component) {
  globalThis[name] = component;
  globalThis.AirflowPlugin = component;
}
