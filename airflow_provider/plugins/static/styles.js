// Styles, loaded beside the modules, so that they have the same version.
import { React } from "./host.js";

const SHEETS = ["vendor/uPlot.css", "streams.css"];

export function useStyles() {
  React.useLayoutEffect(() => {
    for (const sheet of SHEETS) {
      const href = new URL(sheet, import.meta.url).href;
      if (document.querySelector(`link[href="${href}"]`)) continue;
      const link = document.createElement("link");
      link.rel = "stylesheet";
      link.href = href;
      document.head.append(link);
    }
  }, []);
}
