import { TenantName } from "../components/TenantName";
import { useTenantName } from "./queries";

/** As `TenantName` where only the id is known: its name is asked for. */
export function TenantOf({ id }: { id: string }) {
  return <TenantName id={id} name={useTenantName(id)} />;
}
