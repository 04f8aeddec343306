// The host page's globals, which only this module touches: Airflow shares its React and its router.
import htm from "./vendor/htm.js";

export const React = globalThis.React;
const Router = globalThis.ReactRouterDOM;

/** Whether the host shares all that the page is made of. */
export const isComplete = Boolean(React?.useSyncExternalStore && Router?.Link);

export const html = isComplete ? htm.bind(React.createElement) : () => null;
export const Link = Router?.Link;

const queryChanges = new EventTarget();
const subscribe = (notify) => {
  window.addEventListener("popstate", notify);
  queryChanges.addEventListener("change", notify);
  return () => {
    window.removeEventListener("popstate", notify);
    queryChanges.removeEventListener("change", notify);
  };
};

/**
 * The query of the address, and a function that changes it, as the router's of that name.
 * When the router changes it, Airflow mounts the page again: the focus and what is open would be lost.
 */
export function useSearchParams() {
  const search = React.useSyncExternalStore(subscribe, () => location.search);
  const params = React.useMemo(() => new URLSearchParams(search), [search]);
  const setParams = (change, { replace = false } = {}) => {
    const address = `${location.pathname}?${change(new URLSearchParams(location.search))}`;
    history[replace ? "replaceState" : "pushState"](history.state, "", address);
    queryChanges.dispatchEvent(new Event("change"));
  };
  return [params, setParams];
}

/** An address below Airflow's own, whatever prefix it has. */
export const addressOf = (path) => new URL(path, document.baseURI);

/** Give the host the component that it renders for the entry of that name. */
export function register(name, component) {
  globalThis[name] = component;
  globalThis.AirflowPlugin = component;
}
