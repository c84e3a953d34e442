/** Keeps the uploads of a place while its pages come and go, and shows their tray and dialog. */

import {
  createContext,
  lazy,
  type ReactNode,
  Suspense,
  useContext,
  useEffect,
  useMemo,
  useState,
  useSyncExternalStore,
} from "react";
import { useSession } from "../../api/context";
import { credentialsOf, placeId } from "../../api/session";
import { type Job, UploadDesk } from "./desk";

const Tray = lazy(() => import("./Tray"));
const UploadDialog = lazy(() => import("./UploadDialog"));

interface Uploads {
  desk: UploadDesk;
  /** Opens the dialog; with a name, for another version of that adapter. */
  choose: (name?: string) => void;
}

const UploadsContext = createContext<Uploads | null>(null);

export function UploadsProvider({ children }: { children: ReactNode }) {
  const { session } = useSession();
  const { csrf, tenant } = credentialsOf(session);
  const place = session?.place ? placeId(session.place) : "";
  const desk = useMemo(() => new UploadDesk(place, { csrf, tenant }), [place, csrf, tenant]);
  // null: the dialog is closed; "": of a new name.
  const [name, setName] = useState<string | null>(null);
  useEffect(() => {
    desk.open();
    return () => desk.close();
  }, [desk]);
  const uploads = useMemo(() => ({ desk, choose: (of = "") => setName(of) }), [desk]);
  const jobs = useSyncExternalStore(desk.subscribe, desk.snapshot);
  return (
    <UploadsContext value={uploads}>
      {children}
      <Suspense fallback={null}>
        {jobs.length > 0 && <Tray />}
        {name !== null && <UploadDialog name={name} onClose={() => setName(null)} />}
      </Suspense>
    </UploadsContext>
  );
}

export function useUploads(): Uploads {
  const uploads = useContext(UploadsContext);
  if (uploads === null) throw new Error("Uploads are used outside of UploadsProvider.");
  return uploads;
}

export function useJobs(): readonly Job[] {
  const { desk } = useUploads();
  return useSyncExternalStore(desk.subscribe, desk.snapshot);
}

/** A viewer sees adapters and may not change them. */
export function useMayUpload(): boolean {
  const { session } = useSession();
  return session?.place?.changes.includes("adapters") ?? false;
}
