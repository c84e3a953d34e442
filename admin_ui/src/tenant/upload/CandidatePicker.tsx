import { Radio, Stack, Text } from "@mantine/core";
import { formatBytes, formatDate } from "../../components/format";
import type { Candidate } from "./folder";

interface CandidatePickerProps {
  candidates: readonly Candidate[];
  chosen: Candidate | null;
  onChoose: (candidate: Candidate) => void;
}

/** Which of several: the folders as they lie in each other. */
export function CandidatePicker({ candidates, chosen, onChoose }: CandidatePickerProps) {
  const depth = (folder: string) => (folder === "" ? 0 : folder.split("/").length);
  const top = Math.min(...candidates.map(({ folder }) => depth(folder)));
  return (
    <Radio.Group
      label={`This folder has ${candidates.length} adapters. Choose one:`}
      value={chosen?.folder ?? ""}
      onChange={(folder) => {
        const found = candidates.find((candidate) => candidate.folder === folder);
        if (found) onChoose(found);
      }}
    >
      <Stack gap={6} mt="xs">
        {candidates.map((candidate) => (
          <Radio
            key={candidate.folder}
            value={candidate.folder}
            ml={20 * (depth(candidate.folder) - top)}
            disabled={candidate.problem !== null}
            label={
              <Text size="sm">
                {candidate.folder.split("/").at(-1) || "Main folder"}
                {candidate.step === null && candidate.problem === null && " (final)"}
              </Text>
            }
            description={candidate.problem ?? told(candidate)}
          />
        ))}
      </Stack>
    </Radio.Group>
  );
}

function told({ weights }: Candidate): string {
  const bytes = weights.reduce((sum, { size }) => sum + size, 0);
  const saved = Math.max(...weights.map(({ lastModified }) => lastModified));
  return `${formatBytes(bytes)}, saved ${formatDate(saved / 1000)}`;
}
