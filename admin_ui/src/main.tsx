import "@fontsource-variable/inter";
import "virtual:mantine-styles.css";
import "./components/global.css";
import { MantineProvider } from "@mantine/core";
import { setNonce } from "get-nonce";
import { StrictMode } from "react";
import { createRoot } from "react-dom/client";
import { BrowserRouter } from "react-router";
import { App } from "./App";
import { watchInputs } from "./api/attention";
import { BASE } from "./api/base";
import { SessionProvider } from "./api/context";
import { styleNonce } from "./components/nonce";
import { Toaster } from "./components/Toaster";
import { cssVariables, theme } from "./components/theme";

/** Its chunk is also loaded by the page of the API's description, which has no such element. */
const root = document.getElementById("root");

watchInputs(window);
setNonce(styleNonce()); // for the styles of react-remove-scroll, under Mantine's dialogs

if (root !== null)
  createRoot(root).render(
    <StrictMode>
      <MantineProvider
        theme={theme}
        cssVariablesResolver={cssVariables}
        defaultColorScheme="auto"
        getStyleNonce={styleNonce}
      >
        <Toaster />
        <SessionProvider>
          <BrowserRouter basename={BASE}>
            <App />
          </BrowserRouter>
        </SessionProvider>
      </MantineProvider>
    </StrictMode>,
  );
