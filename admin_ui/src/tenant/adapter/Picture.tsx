/** Where an adapter's weight sits: a cell for each module and layer, the stronger the more. */

import { Group, SegmentedControl, Text, VisuallyHidden } from "@mantine/core";
import { type CSSProperties, useState } from "react";
import { formatNorm } from "../../components/format";
import { Scrollable } from "../../components/Scrollable";
import { MEASURE_WORDS, MEASURES, type Measure, type Picture as Of, rowsOf } from "./model";
import classes from "./Picture.module.css";

const OPTIONS = MEASURES.map((value) => ({
  value,
  label: { product: "Added", norm_a: "A", norm_b: "B", rank: "Rank" }[value],
}));

export function Picture({ of }: { of: Of }) {
  const [measure, setMeasure] = useState<Measure>("product");
  const [pointed, setPointed] = useState<string | null>(null);
  const rows = rowsOf(of, measure);
  return (
    <>
      <Group justify="space-between" mb="xs">
        <SegmentedControl
          size="xs"
          aria-label="Value to show"
          data={OPTIONS}
          value={measure}
          onChange={(value) => {
            const found = MEASURES.find((each) => each === value);
            if (found) setMeasure(found);
          }}
        />
        <Text size="xs" c="dimmed" className="numbers">
          {pointed ?? MEASURE_WORDS[measure]}
        </Text>
      </Group>
      <Scrollable label="Modules by layer">
        <table className={classes.picture} onMouseLeave={() => setPointed(null)}>
          <caption>
            <VisuallyHidden>{MEASURE_WORDS[measure]}, by module and layer</VisuallyHidden>
          </caption>
          <thead>
            <tr>
              <th scope="col">
                <VisuallyHidden>Module</VisuallyHidden>
              </th>
              {of.layers.map((layer) => (
                <th key={layer} scope="col">
                  {layer}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map(({ module, cells }) => (
              <tr key={module}>
                <th scope="row">{module}</th>
                {cells.map(({ layer, value, part }) => (
                  <td
                    key={layer}
                    className={value === null ? `${classes.cell} ${classes.none}` : classes.cell}
                    style={{ "--part": part } as CSSProperties}
                    onMouseEnter={() =>
                      setPointed(`${module}, layer ${layer}: ${written(value, measure)}`)
                    }
                  >
                    <VisuallyHidden>{written(value, measure)}</VisuallyHidden>
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </Scrollable>
    </>
  );
}

function written(value: number | null, measure: Measure): string {
  if (value === null) return "none";
  return measure === "rank" ? String(value) : formatNorm(value);
}
