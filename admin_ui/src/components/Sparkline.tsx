interface SparklineProps {
  /** null: nothing is known of that moment. */
  values: readonly (number | null)[];
  label: string;
  color?: string;
  height?: number;
}

const WIDTH = 120;

/** The shape of a series without axes; its numbers stand beside it. */
export function Sparkline({ values, label, color = "currentColor", height = 28 }: SparklineProps) {
  const known = values.filter((value) => value !== null);
  const top = Math.max(...known, Number.MIN_VALUE);
  const x = (index: number) => (index / Math.max(values.length - 1, 1)) * WIDTH;
  const y = (value: number) => height - 1 - (value / top) * (height - 3);
  let path = "";
  let pen = "M";
  values.forEach((value, index) => {
    if (value === null) {
      pen = "M";
      return;
    }
    path += `${pen}${x(index).toFixed(1)} ${y(value).toFixed(1)}`;
    pen = "L";
  });
  return (
    <svg
      role="img"
      aria-label={label}
      viewBox={`0 0 ${WIDTH} ${height}`}
      width="100%"
      height={height}
      preserveAspectRatio="none"
      style={{ display: "block" }}
    >
      <path
        d={path}
        fill="none"
        stroke={color}
        strokeWidth={1.5}
        vectorEffect="non-scaling-stroke"
      />
    </svg>
  );
}
