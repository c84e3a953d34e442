/** From two files to a decision: choose, send with progress, wait for the check, see the result. */

import { Modal, Text } from "@mantine/core";
import { useQueryClient } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";
import { useSession } from "../../api/context";
import { credentialsOf } from "../../api/session";
import { uploadAdapter } from "../../api/upload";
import type { Picked } from "./files";
import { useVersion } from "./queries";
import { ChooseStep } from "./UploadChoose";
import { ProgressStep, ResultStep } from "./UploadResult";

interface UploadModalProps {
  opened: boolean;
  onClose: () => void;
}

export function UploadModal({ opened, onClose }: UploadModalProps) {
  return (
    <Modal
      opened={opened}
      onClose={onClose}
      size="lg"
      title={<Text fw={600}>Upload an adapter</Text>}
      closeButtonProps={{ "aria-label": "Close" }}
    >
      <UploadFlow onClose={onClose} />
    </Modal>
  );
}

interface Sent {
  name: string;
  version: number;
}

function UploadFlow({ onClose }: { onClose: () => void }) {
  const { session } = useSession();
  const queries = useQueryClient();
  const [progress, setProgress] = useState<number | null>(null);
  const [sent, setSent] = useState<Sent | null>(null);
  const [error, setError] = useState<unknown>(null);
  const abort = useRef<AbortController | null>(null);
  useEffect(() => () => abort.current?.abort(), []);
  const version = useVersion(sent?.name ?? "", sent?.version ?? null);

  async function start(name: string, { config, weights }: Picked) {
    if (session === null || config === null || weights === null) return;
    abort.current = new AbortController();
    setError(null);
    setProgress(0);
    try {
      const files = { config, weights };
      const answer = await uploadAdapter(
        credentialsOf(session),
        name,
        files,
        setProgress,
        abort.current.signal,
      );
      setSent({ name: answer.name, version: answer.version });
      await queries.invalidateQueries({ queryKey: ["adapters"], exact: true });
    } catch (reason) {
      if (!abort.current.signal.aborted) setError(reason);
    } finally {
      setProgress(null);
    }
  }

  function again() {
    setSent(null);
    setError(null);
  }

  if (sent !== null)
    return (
      <ResultStep
        name={sent.name}
        number={sent.version}
        version={version.data}
        error={version.error}
        onAgain={again}
        onClose={onClose}
      />
    );
  return (
    <>
      <div hidden={progress !== null}>
        <ChooseStep error={error} onStart={start} />
      </div>
      {progress !== null && (
        <ProgressStep fraction={progress} onCancel={() => abort.current?.abort()} />
      )}
    </>
  );
}
