/** A change, field by field: as it was and as it is. */

import { Anchor, Text } from "@mantine/core";
import { useState } from "react";
import { Scrollable } from "../components/Scrollable";
import classes from "./Changes.module.css";
import type { Change } from "./model";

export function Changes({ changes }: { changes: Change[] }) {
  const [isAll, setAll] = useState(false);
  const differing = changes.filter(({ kind }) => kind !== "same");
  const same = changes.length - differing.length;
  const shown = isAll ? changes : differing;
  if (changes.length === 0)
    return <Text size="sm">This entry has no field values from before or after the action.</Text>;
  return (
    <>
      {shown.length === 0 ? (
        <Text size="sm">No field changed.</Text>
      ) : (
        <Scrollable label="Changed fields">
          <table className={classes.table} aria-label="Changed fields">
            <thead>
              <tr>
                <th scope="col">Field</th>
                <th scope="col">Before</th>
                <th scope="col">After</th>
              </tr>
            </thead>
            <tbody>
              {shown.map(({ path, kind, before, after }) => (
                <tr key={path}>
                  <td className={classes.path}>{path}</td>
                  <td
                    className={classes.before}
                    data-differs={(kind !== "same" && before !== null) || undefined}
                  >
                    {before ?? "–"}
                  </td>
                  <td
                    className={classes.after}
                    data-differs={(kind !== "same" && after !== null) || undefined}
                  >
                    {after ?? "–"}
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scrollable>
      )}
      {same > 0 && (
        <Anchor component="button" type="button" size="xs" onClick={() => setAll(!isAll)}>
          {isAll
            ? "Show only changed fields"
            : `Show ${same} unchanged ${same === 1 ? "field" : "fields"}`}
        </Anchor>
      )}
    </>
  );
}
