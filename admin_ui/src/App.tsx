/** Which page an address shows, for a tenant, for an operator, and for nobody yet. */

import { lazy, Suspense } from "react";
import { Navigate, Route, Routes } from "react-router";
import { AdaptersPage } from "./adapters/AdaptersPage";
import { useSession } from "./api/context";
import { Shell } from "./components/Shell";
import { TableSkeleton } from "./components/states";
import { PlaygroundPage } from "./playground/PlaygroundPage";
import { SignInPage } from "./signin/SignInPage";
import { TenantsPage } from "./tenants/TenantsPage";

// The charts are half of the bundle; only these pages need them.
const UsagePage = lazy(() => import("./usage/UsagePage"));
const EnginePage = lazy(() => import("./engine/EnginePage"));

export function App() {
  const { session } = useSession();
  if (session === null) return <SignInPage />;
  return (
    <Shell>
      <Suspense fallback={<TableSkeleton />}>
        {session.role === "tenant" ? <TenantRoutes /> : <OperatorRoutes />}
      </Suspense>
    </Shell>
  );
}

function TenantRoutes() {
  return (
    <Routes>
      <Route path="/adapters" element={<AdaptersPage />} />
      <Route path="/playground" element={<PlaygroundPage />} />
      <Route path="/usage" element={<UsagePage />} />
      <Route path="*" element={<Navigate to="/adapters" replace />} />
    </Routes>
  );
}

function OperatorRoutes() {
  return (
    <Routes>
      <Route path="/operator/tenants" element={<TenantsPage />} />
      <Route path="/operator/engine" element={<EnginePage />} />
      <Route path="*" element={<Navigate to="/operator/tenants" replace />} />
    </Routes>
  );
}
