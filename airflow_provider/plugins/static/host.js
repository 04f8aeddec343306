// The host page's globals, which only this module touches: Airflow shares its React and its router.
import htm from "./vendor/htm.js";

export const React = globalThis.React;
const Router = globalThis.ReactRouterDOM;

/** Whether the host shares all that the page is made of. */
export const isComplete = Boolean(React?.createElement && Router?.useSearchParams && Router?.Link);

export const html = isComplete ? htm.bind(React.createElement) : () => null;
export const Link = Router?.Link;
export const useSearchParams = Router?.useSearchParams;

/** An address below Airflow's own, whatever prefix it has. */
export const addressOf = (path) => new URL(path, document.baseURI);

/** Give the host the component that it renders for the entry of that name. */
export function register(name, component) {
  globalThis[name] = component;
  globalThis.AirflowPlugin = component;
}
