// The entry. Asks for the first data at once, and then for the files of the view that shows it.
import { firstPaths, get, refreshMs } from "./api.js";
import { isComplete, register } from "./host.js";

if (isComplete) {
  for (const first of [refreshMs(), ...firstPaths().map(get)])
    first.catch(() => null); // the view asks again, and says what is wrong
  register("Streams", (await import("./page.js")).Page);
} else {
  const { showPlainTable } = await import("./plain.js");
  register("Streams", () => {
    showPlainTable();
    return null;
  });
}
